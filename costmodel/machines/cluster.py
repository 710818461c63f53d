"""The machines: device types, hosts in order of rank, and link groups apart from hosts.

Two devices use the first (innermost) link whose group holds both. The same keys make the TOML file
that people write and the JSON inside a plan. Leaves out what collectives cost (`costmodel.machines.collectives`), the
routes through a fabric, and links that differ between groups of one level.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from costmodel.codec import UNSAID, Json, Record, record
from costmodel.documents import Document
from costmodel.files import Node, read_toml
from costmodel.forms import JsonForm, listed
from costmodel.machines import catalogue
from costmodel.machines.catalogue.device_file import SUFFIX
from costmodel.machines.cluster_parts import NETWORK, SCALE_UP, DeviceType, Host, LinkGroup
from costmodel.machines.cluster_rules import SLOWEST, check_cluster, check_order
from costmodel.machines.links import Links, read_links

if TYPE_CHECKING:
    from costmodel.machines.collectives.price import Price


@dataclass(frozen=True, slots=True)
class _Speed:
    """A rank that is faster or slower than its type."""

    index: int
    speed: Annotated[float, Json(rules={"minimum": SLOWEST, "maximum": 1 / SLOWEST})]


_SPEEDS: JsonForm[tuple[_Speed, ...]] = listed(record(_Speed))
Speeds = Annotated[
    tuple[tuple[int, float], ...],
    Json(
        "rank",
        form=JsonForm(
            lambda node: tuple((each.index, each.speed) for each in _SPEEDS.read(node)),
            lambda speeds: [{"index": rank, "speed": speed} for rank, speed in speeds],
            _SPEEDS.schema,
        ),
    ),
]


@dataclass(frozen=True)
class Cluster:
    """Devices in order of rank and how they are joined.

    `speeds` are exceptions: (rank, factor), 1 being the speed of its device type. `links` are
    measured latencies and bandwidths that take the place of the given ones. `order` names the device of each rank,
    counted through the hosts, where a plan leaves out devices before others that it uses; empty: all, in order.

    Raises
    ------
    InvalidInput
        On an unknown device type or catalogue id, a name or rank that occurs twice, a group that does not divide the
        devices or does not hold whole groups of the link before it, or two devices that no link joins.
    """

    devices: Annotated[tuple[DeviceType, ...], Json("device")]
    hosts: Annotated[tuple[Host, ...], Json("host")]
    groups: Annotated[tuple[LinkGroup, ...], Json("link")] = ()
    speeds: Speeds = ()
    links: Annotated[Links | None, UNSAID, Json(form=record(Links))] = None
    order: Annotated[
        tuple[int, ...],
        UNSAID,
        Json(
            says="The device of each rank, counted through the hosts, where a plan leaves out some before others.",
            rules={"uniqueItems": True},
        ),
    ] = ()

    def __post_init__(self) -> None:
        check_cluster(self.devices, self.hosts, self.groups, self.speeds)
        check_order(self.order, sum(host.count * host.devices for host in self.hosts))

    @cached_property
    def num_devices(self) -> int:
        """How many devices (ranks) there are."""
        return len(self._types)

    def only(self, ranks: tuple[int, ...]) -> "Cluster":
        """Return the cluster of these ranks alone, numbered anew."""
        speeds = dict(self.speeds)
        kept = tuple((number, speeds[rank]) for number, rank in enumerate(ranks) if rank in speeds)
        return replace(self, order=tuple(map(self._device_at, ranks)), speeds=kept)

    def _device_at(self, rank: int) -> int:
        return self.order[rank] if self.order else rank

    @cached_property
    def seats(self) -> tuple[int, ...]:
        """Number of the host of each rank."""
        counts = [host.devices for host in self.hosts for _ in range(host.count)]
        hosts = [number for number, count in enumerate(counts) for _ in range(count)]
        return tuple(hosts[device] for device in self.order) if self.order else tuple(hosts)

    @cached_property
    def _types(self) -> tuple[DeviceType, ...]:
        by_name = {device.name: device for device in self.devices}
        found = [by_name[host.device] for host in self.hosts for _ in range(host.count * host.devices)]
        return tuple(found[device] for device in self.order) if self.order else tuple(found)

    def device_of(self, rank: int) -> DeviceType:
        """Device type of a rank."""
        return self._types[rank]

    def speed_of(self, rank: int) -> float:
        """Speed of a rank against its device type."""
        return dict(self.speeds).get(rank, 1.0)

    @cached_property
    def collectives(self) -> "dict[tuple[str, tuple[int, ...]], Price]":
        """Prices of collectives by name and ranks, as far as `collectives` has been asked for them."""
        return {}

    @cached_property
    def _devices_beside(self) -> tuple[int, ...]:
        return tuple(host.devices for host in self.hosts for _ in range(host.count * host.devices))

    def flow_gbs(self, rank: int, group: LinkGroup) -> float:
        """Return what a device gets of a link when all of its host use it at once, 10^9 bytes a second."""
        share = group.shared_gbs / self._devices_beside[rank] if group.shared_gbs else group.bandwidth_gbs
        return min(group.bandwidth_gbs, share)

    def link_kind(self, group: LinkGroup) -> str:
        """Return which of NCCL's kinds of hops a link is: ``nvlink`` (and its like), ``pcie`` or ``network``.

        As its file says, else as the catalogue joins such devices: by their scale-up link as far as that reaches (past
        a host only where its domain is larger than hosts are), by PCIe in the rest of a host, by the network between.
        """
        if group.kind:
            return {SCALE_UP: "nvlink", NETWORK: "network"}[group.kind]
        known = [catalogue.device(device.catalogue) for device in self.devices if device.catalogue]
        size = group.group or sum(host.count * host.devices for host in self.hosts)
        joins = len(known) == len(self.devices) and all(1 < size <= row.scaleup_domain for row in known)
        if all(host.devices % size == 0 for host in self.hosts):
            return "nvlink" if joins else "pcie"
        beyond = joins and all(row.scaleup_domain > row.host_devices for row in known)
        return "nvlink" if beyond and (group.group or len(self.groups) == 1) else "network"

    def link_between(self, first: int, second: int) -> LinkGroup:
        """Innermost link whose group holds both ranks."""
        return self._link(self._device_at(first), self._device_at(second))

    def _link(self, first: int, second: int) -> LinkGroup:
        return next(g for g in self.groups if not g.group or first // g.group == second // g.group)

    def p2p_ns(self, first: int, second: int, size_bytes: int) -> int:
        """Time of one transfer alone between two ranks; 0 within a rank.

        A measured time counts for pairs joined by the link that it was measured on, that of ranks 0 and 1. Devices
        that reach each peer at less than their full rate (catalogue: `pair_gbs`) send at that rate.
        """
        if first == second:
            return 0
        group = self.link_between(first, second)
        if self.links and "p2p" in self.links.classes and group is self._measured_link:
            return self.links.classes["p2p"].time_ns(size_bytes)
        rates = [group.bandwidth_gbs, group.shared_gbs, self._pair_gbs(first), self._pair_gbs(second)]
        return group.latency_ns + round(size_bytes / min(filter(None, rates))) if size_bytes else 0

    def unlike(self, first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
        """Return pairs of ranks, one for each time that transfers between these take: of its ends and their link."""
        found: dict[object, tuple[int, int]] = {}
        for pair in zip(first, second, strict=True):
            a, b = (self.order[rank] for rank in pair) if self.order else pair
            link = next(
                (i for i, group in enumerate(self.groups) if not group.group or a // group.group == b // group.group),
                -1,
            )
            found.setdefault((-1 if a == b else link, self._types[pair[0]].name, self._types[pair[1]].name), pair)
        return list(found.values())

    def measured(self, group: LinkGroup) -> LinkGroup:
        """Return a link with what was measured on it: latency of small transfers, bandwidth of the largest."""
        if not self.links or "p2p" not in self.links.classes or group is not self._measured_link:
            return group
        ranges = self.links.classes["p2p"].ranges
        return replace(group, latency_ns=ranges[0].latency_ns, bandwidth_gbs=ranges[-1].bandwidth_gbs)

    @cached_property
    def _measured_link(self) -> LinkGroup:
        return self._link(0, 1)

    def _pair_gbs(self, rank: int) -> float:
        name = self._types[rank].catalogue
        return catalogue.device(name).pair_gbs if name else 0.0

    def host_ns(self, first: int, second: int, size_bytes: int) -> int:
        """Time that either of two ranks loses to its end of a message; 0 within a rank, or if it was not measured."""
        return 0 if first == second or not self.links else self.links.host_ns(size_bytes)


def _settled(values: dict[str, Any], node: Node) -> None:
    """Take the memory of a device that says none from the catalogue."""
    name = values.get("catalogue", "")
    if "memory_bytes" not in values and not name:
        node.fail("a device needs memory_gib, or a catalogue id that says it")
    if "memory_bytes" not in values:
        values["memory_bytes"] = node.child("catalogue").build(lambda: catalogue.device(name)).memory_bytes


def _settled_beside(values: dict[str, Any], node: Node) -> None:
    """Do so where a device file that is named lies in the folder of the cluster file."""
    if values.get("catalogue", "").endswith(SUFFIX):
        values["catalogue"] = str(Path(node.file).parent / values["catalogue"])
    _settled(values, node)


_NAMED = {"required": ["catalogue"], "properties": {"catalogue": {"minLength": 1}}}
_RULES = {"anyOf": [{"required": ["memory_gib"]}, _NAMED]}
_LATE = ("memory_gib", "price_per_hour")
record(DeviceType, late=_LATE, settle=_settled, rules=_RULES)
CLUSTER: JsonForm[Cluster] = record(Cluster, late=("order", "links"))
"""The cluster that is inside a plan: the keys of the TOML file."""
_DEVICES: JsonForm[tuple[DeviceType, ...]] = listed(
    Record((DeviceType,), late=_LATE, settle=_settled_beside, rules=_RULES)
)


@dataclass(frozen=True, slots=True)
class _ClusterFile:
    """Machines: the tree of the TOML file that people write."""

    devices: Annotated[tuple[DeviceType, ...], Json("device", form=_DEVICES)]
    hosts: Annotated[tuple[Host, ...], Json("host")]
    groups: Annotated[tuple[LinkGroup, ...], Json("link")] = ()
    speeds: Speeds = ()
    links: Annotated[str, Json(says="Name of a links file in the same folder.")] = ""


CLUSTER_FILE: Document[_ClusterFile] = Document("penstock-cluster", 1, record(_ClusterFile), ("extra",))


def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster file (TOML); ``links`` in it names a links file in the same folder."""
    root = read_toml(path)
    found = CLUSTER_FILE.read_node(root)
    links = read_links(Path(path).parent / found.links) if found.links else None
    return root.build(lambda: Cluster(found.devices, found.hosts, found.groups, found.speeds, links))


def uniform_cluster(device: DeviceType, num_devices: int, links: Links | None) -> Cluster:
    """Return one host of `num_devices` devices alike, joined by the measured links.

    Without measured links the transfer is taken as free, which the plan's provenance records.
    """
    group = LinkGroup("local", 0, 1e9, 0)
    if links and "p2p" in links.classes:
        last = links.classes["p2p"].ranges[-1]
        group = LinkGroup("local", 0, last.bandwidth_gbs, links.classes["p2p"].ranges[0].latency_ns)
    return Cluster((device,), (Host(device.name, num_devices),), (group,), (), links)
