"""The machines: device types, hosts in order of rank, and link groups apart from hosts.

Two devices use the first (innermost) link whose group holds both. The same keys make the TOML file
that people write and the JSON inside a plan. Leaves out what collectives cost (`costmodel.machines.collectives`), the
routes through a fabric, and links that differ between groups of one level.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.files import LARGEST_INTEGER, Node, document, read_toml
from costmodel.machines import catalogue
from costmodel.machines.catalogue.device_file import SUFFIX
from costmodel.machines.cluster_parts import GIB, LINK_KINDS, NETWORK, SCALE_UP, DeviceType, Host, LinkGroup
from costmodel.machines.cluster_rules import check_cluster, check_order
from costmodel.machines.links import LINKS_KEYS, LINKS_OPTIONAL, Links, read_links

if TYPE_CHECKING:
    from costmodel.machines.collectives.price import Price

CLUSTER_FORMAT, CLUSTER_VERSION = "penstock-cluster", 1


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

    devices: tuple[DeviceType, ...]
    hosts: tuple[Host, ...]
    groups: tuple[LinkGroup, ...]
    speeds: tuple[tuple[int, float], ...] = ()
    links: Links | None = None
    order: tuple[int, ...] = ()

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

    def to_json(self) -> dict[str, object]:
        """Return the JSON that is in a plan: the keys of the TOML file."""
        body: dict[str, object] = {
            "device": [
                {
                    "name": d.name,
                    "type": d.type,
                    "catalogue": d.catalogue,
                    "memory_gib": d.memory_bytes / GIB,
                    **({"price_per_hour": d.price_per_hour} if d.price_per_hour else {}),
                }
                for d in self.devices
            ],
            "host": [
                {"count": h.count, "device": h.device, "devices": h.devices, "memory_gib": h.memory_bytes / GIB}
                for h in self.hosts
            ],
            "link": [
                {
                    "name": g.name,
                    "group": g.group,
                    "bandwidth_gbs": g.bandwidth_gbs,
                    "latency_us": g.latency_ns / 1000,
                    "shared_gbs": g.shared_gbs,
                    **({"kind": g.kind} if g.kind else {}),
                }
                for g in self.groups
            ],
            "rank": [{"index": rank, "speed": speed} for rank, speed in self.speeds],
        }
        if self.order:
            body["order"] = list(self.order)
        if self.links:
            body["links"] = self.links.to_json()
        return body


def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster file (TOML); ``links`` in it names a links file in the same folder."""
    root = read_toml(path)
    top = document(root, CLUSTER_FORMAT, CLUSTER_VERSION, ("device", "host"), ("link", "rank", "links", "extra"))
    links = read_links(Path(path).parent / top["links"].text()) if "links" in top else None
    return root.build(lambda: _cluster(top, links, folder=Path(path).parent))


def cluster_from_node(node: Node) -> Cluster:
    """Read the cluster that is inside a plan."""
    top = node.members(("device", "host"), ("link", "rank", "links", "order"))
    links = Links.from_node(top["links"].members(LINKS_KEYS, LINKS_OPTIONAL)) if "links" in top else None
    order = top["order"].integers() if "order" in top else ()
    return node.build(lambda: _cluster(top, links, order))


def uniform_cluster(device: DeviceType, num_devices: int, links: Links | None) -> Cluster:
    """Return one host of `num_devices` devices alike, joined by the measured links.

    Without measured links the transfer is taken as free, which the plan's provenance records.
    """
    group = LinkGroup("local", 0, 1e9, 0)
    if links and "p2p" in links.classes:
        last = links.classes["p2p"].ranges[-1]
        group = LinkGroup("local", 0, last.bandwidth_gbs, links.classes["p2p"].ranges[0].latency_ns)
    return Cluster((device,), (Host(device.name, num_devices),), (group,), (), links)


def _cluster(
    top: Mapping[str, Node], links: Links | None, order: tuple[int, ...] = (), folder: Path | None = None
) -> Cluster:
    rows: Callable[[str], Iterable[Node]] = lambda key: top[key].items() if key in top else ()  # noqa: E731
    return Cluster(
        tuple(_device(node, folder) for node in rows("device")),
        tuple(_host(node) for node in rows("host")),
        tuple(_group(node) for node in rows("link")),
        tuple(_exception(node) for node in rows("rank")),
        links,
        order,
    )


def _device(node: Node, folder: Path | None) -> DeviceType:
    """Read a device type: what is not given comes from the catalogue, whose devices are all ``cuda`` for torch.

    A device file lies in the folder of the cluster file that names it.
    """
    fields = node.members(("name",), ("memory_gib", "type", "catalogue", "price_per_hour"))
    name = fields["catalogue"].text() if "catalogue" in fields else ""
    name = str(folder / name) if folder and name.endswith(SUFFIX) else name
    if "memory_gib" in fields:
        memory_bytes = round(fields["memory_gib"].number(0, LARGEST_INTEGER / GIB) * GIB)
    elif name:
        memory_bytes = fields["catalogue"].build(lambda: catalogue.device(name)).memory_bytes
    else:
        node.fail("a device needs memory_gib, or a catalogue id that says it")
    kind = fields["type"].text(("cpu", "cuda")) if "type" in fields else "cuda"
    price = fields["price_per_hour"].number() if "price_per_hour" in fields else 0.0
    return DeviceType(fields["name"].text(), memory_bytes, kind, name, price)


def _host(node: Node) -> Host:
    fields = node.members(("device", "devices"), ("count", "memory_gib"))
    return Host(
        fields["device"].text(),
        fields["devices"].integer(1),
        fields["count"].integer(1) if "count" in fields else 1,
        round(fields["memory_gib"].number(0, LARGEST_INTEGER / GIB) * GIB) if "memory_gib" in fields else 0,
    )


def _group(node: Node) -> LinkGroup:
    fields = node.members(("name", "group", "bandwidth_gbs", "latency_us"), ("shared_gbs", "kind"))
    return LinkGroup(
        fields["name"].text(),
        fields["group"].integer(),
        fields["bandwidth_gbs"].number(),
        round(fields["latency_us"].number(0, LARGEST_INTEGER / 1000) * 1000),
        fields["shared_gbs"].number() if "shared_gbs" in fields else 0.0,
        fields["kind"].text(LINK_KINDS) if "kind" in fields else "",
    )


def _exception(node: Node) -> tuple[int, float]:
    fields = node.members(("index", "speed"))
    return fields["index"].integer(), fields["speed"].number()
