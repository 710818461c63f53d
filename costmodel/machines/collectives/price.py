"""The time of one collective over one set of ranks, by size: modelled as the least of lines, or measured.

Leaves out where lines come from: `costmodel.machines.collectives.algorithms`.
"""

from dataclasses import dataclass

from costmodel.machines.links import LinkClass


@dataclass(frozen=True, slots=True)
class Line:
    """One way to run a collective: ``latency_ns + size_bytes * ns_per_byte``."""

    latency_ns: float
    ns_per_byte: float


@dataclass(frozen=True, slots=True)
class Modelled:
    """The fastest of several ways, by size."""

    lines: tuple[Line, ...]

    @property
    def best_rate(self) -> float:
        """What a byte takes at least, ns: a buffer takes no less than its bytes, nor do its parts."""
        return min(line.ns_per_byte for line in self.lines)

    def time_ns(self, size_bytes: int) -> int:
        """Time for a buffer of `size_bytes`."""
        return round(min(line.latency_ns + size_bytes * line.ns_per_byte for line in self.lines))


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement, its sizes scaled by `share`, with `more_ns` for ranks beyond the measured ones."""

    link: LinkClass
    share: float
    more_ns: int

    @property
    def best_rate(self) -> float:
        """What a byte takes at least, ns."""
        return self.share * min(1 / part.bandwidth_gbs for part in self.link.ranges)

    def time_ns(self, size_bytes: int) -> int:
        """Time for a buffer of `size_bytes`."""
        return self.link.time_ns(max(1, round(size_bytes * self.share))) + self.more_ns


Price = Modelled | Measured
