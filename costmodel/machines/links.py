"""How long a transfer takes: latency and bandwidth by range of sizes, as measured or as given.

Models one transfer alone on its link; class ``p2p_host`` is what one end of a message takes from a rank that computes
meanwhile. Leaves out contention, which the simulator's mode ``links`` and
the cluster's shared links add.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import Node, document, read_json, write_json

LINKS_FORMAT, LINKS_VERSION = "penstock-links", 1
CLASSES = ("p2p", "p2p_host", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")

SLOWEST_GBS = 1e-9
"""One byte a second: no link is slower, and times stay numbers that can be rounded."""


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Sizes from `min_bytes` on take ``latency_ns + bytes / bandwidth_gbs`` (10^9 bytes a second)."""

    min_bytes: int
    latency_ns: int
    bandwidth_gbs: float

    def __post_init__(self) -> None:
        if self.bandwidth_gbs < SLOWEST_GBS:
            raise InvalidInput(
                f"bandwidth_gbs is {self.bandwidth_gbs:g}; it must be at least {SLOWEST_GBS:g} (10^9 bytes a second)"
            )
        if min(self.min_bytes, self.latency_ns) < 0:
            raise InvalidInput("min_bytes and latency_ns must not be negative")


@dataclass(frozen=True, slots=True)
class LinkClass:
    """One kind of transfer: its ranges in rising order, and the measured table (bytes, ns)."""

    ranges: tuple[SizeRange, ...]
    table: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        starts = [r.min_bytes for r in self.ranges]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise InvalidInput(f"size ranges start at {starts}; they must start at 0 and rise")

    def time_ns(self, size_bytes: int) -> int:
        """Time of one transfer of `size_bytes`; nothing to send takes no time."""
        if size_bytes == 0:
            return 0
        fit = next(r for r in reversed(self.ranges) if r.min_bytes <= size_bytes)
        return fit.latency_ns + round(size_bytes / fit.bandwidth_gbs)


@dataclass(frozen=True, slots=True)
class Links:
    """Measured links: backend, device, number of ranks, and a `LinkClass` for each class measured.

    `overlap_slowdown` is compute's time during a sum over all ranks against its time alone; 0 where not measured.
    """

    backend: str
    device: str
    num_ranks: int
    classes: Mapping[str, LinkClass]
    overlap_slowdown: float = 0.0

    def __post_init__(self) -> None:
        if self.overlap_slowdown and self.overlap_slowdown < 1:
            raise InvalidInput(f"overlap_slowdown is {self.overlap_slowdown:g}; it must be a factor of at least 1")

    def host_ns(self, size_bytes: int) -> int:
        """Time that a rank loses to one end of a message, which holds a byte at least; 0 where it was not measured."""
        return self.classes["p2p_host"].time_ns(max(1, size_bytes)) if "p2p_host" in self.classes else 0

    def to_json(self) -> dict[str, object]:
        """Return the JSON body (without ``format`` and ``version``)."""
        return {
            "backend": self.backend,
            "device": self.device,
            "num_ranks": self.num_ranks,
            "classes": {name: _class_to_json(link) for name, link in self.classes.items()},
            **({"overlap_slowdown": self.overlap_slowdown} if self.overlap_slowdown else {}),
        }

    @classmethod
    def from_node(cls, members: Mapping[str, Node]) -> "Links":
        """Read the body back."""
        classes = {}
        for name, node in members["classes"].entries().items():
            if name not in CLASSES:
                node.fail(f"the classes are {', '.join(CLASSES)}")
            classes[name] = _class_from_node(node)
        backend, device, num_ranks = (
            members["backend"].text(),
            members["device"].text(),
            members["num_ranks"].integer(1),
        )
        if "overlap_slowdown" not in members:
            return cls(backend, device, num_ranks, classes)
        return cls(backend, device, num_ranks, classes, members["overlap_slowdown"].number(1))


LINKS_KEYS, LINKS_OPTIONAL = ("backend", "device", "num_ranks", "classes"), ("overlap_slowdown",)


def read_links(path: str | Path) -> Links:
    """Read a links file."""
    return Links.from_node(
        document(read_json(path), LINKS_FORMAT, LINKS_VERSION, LINKS_KEYS, (*LINKS_OPTIONAL, "provenance", "extra"))
    )


def write_links(path: str | Path, links: Links, provenance: Mapping[str, object] | None = None) -> None:
    """Write a links file."""
    write_json(
        path, LINKS_FORMAT, LINKS_VERSION, {**links.to_json(), "provenance": dict(provenance or {}), "extra": {}}
    )


def _class_to_json(link: LinkClass) -> dict[str, object]:
    return {
        "ranges": [
            {"min_bytes": r.min_bytes, "latency_ns": r.latency_ns, "bandwidth_gbs": r.bandwidth_gbs}
            for r in link.ranges
        ],
        "table": [list(row) for row in link.table],
    }


def _class_from_node(node: Node) -> LinkClass:
    members = node.members(("ranges",), ("table",))
    return node.build(
        lambda: LinkClass(tuple(map(_range_from_node, members["ranges"].items())), _table(members.get("table")))
    )


def _range_from_node(node: Node) -> SizeRange:
    fields = node.members(("min_bytes", "latency_ns", "bandwidth_gbs"))
    return node.build(
        lambda: SizeRange(
            fields["min_bytes"].integer(), fields["latency_ns"].integer(), fields["bandwidth_gbs"].number()
        )
    )


def _table(node: Node | None) -> tuple[tuple[int, int], ...]:
    rows = [row.integers() for row in node.items()] if node else []
    for row in rows:
        if node and len(row) != 2:
            node.fail("each row is [bytes, ns]")
    return tuple((row[0], row[1]) for row in rows)
