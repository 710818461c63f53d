"""How long a transfer takes: latency and bandwidth by range of sizes, as measured or as given.

Models one transfer alone on its link; class ``p2p_host`` is what one end of a message takes from a rank that computes
meanwhile. Leaves out contention, which the simulator's mode ``links`` and
the cluster's shared links add.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from costmodel.codec import Json, Positive, record
from costmodel.documents import Document
from costmodel.errors import InvalidInput

CLASSES = ("p2p", "p2p_host", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")

SLOWEST_GBS = 1e-9
"""One byte a second: no link is slower, and times stay numbers that can be rounded."""


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Sizes from `min_bytes` on take ``latency_ns + bytes / bandwidth_gbs`` (10^9 bytes a second)."""

    min_bytes: int
    latency_ns: int
    bandwidth_gbs: Annotated[float, Json(rules={"minimum": SLOWEST_GBS}, says="10^9 bytes a second, one direction.")]

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

    ranges: Annotated[
        tuple[SizeRange, ...], Json(says="By rising min_bytes; the first starts at 0.", rules={"minItems": 1})
    ]
    table: Annotated[tuple[tuple[int, int], ...], Json(says="[bytes, ns]")] = ()

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
    num_ranks: Positive
    classes: Annotated[Mapping[str, LinkClass], Json(allowed=CLASSES)]
    overlap_slowdown: Annotated[float, Json(least=1, unsaid=True)] = 0.0

    def __post_init__(self) -> None:
        if self.overlap_slowdown and self.overlap_slowdown < 1:
            raise InvalidInput(f"overlap_slowdown is {self.overlap_slowdown:g}; it must be a factor of at least 1")

    def host_ns(self, size_bytes: int) -> int:
        """Time that a rank loses to one end of a message, which holds a byte at least; 0 where it was not measured."""
        return self.classes["p2p_host"].time_ns(max(1, size_bytes)) if "p2p_host" in self.classes else 0


LINKS: Document[Links] = Document("penstock-links", 1, record(Links), ("provenance", "extra"))
"""The file of links."""


def read_links(path: str | Path) -> Links:
    """Read a links file."""
    return LINKS.read(path)


def write_links(path: str | Path, links: Links, provenance: Mapping[str, object] | None = None) -> None:
    """Write a links file."""
    LINKS.write(path, links, provenance=provenance or {}, extra={})
