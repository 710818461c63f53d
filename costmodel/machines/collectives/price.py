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

    def time_ns(self, size_bytes: int) -> int:
        """Time for a buffer of `size_bytes`."""
        return round(min(line.latency_ns + size_bytes * line.ns_per_byte for line in self.lines))


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement, its sizes scaled by `share`, with `more_ns` for ranks beyond the measured ones."""

    link: LinkClass
    share: float
    more_ns: int

    def time_ns(self, size_bytes: int) -> int:
        """Time for a buffer of `size_bytes`."""
        return self.link.time_ns(max(1, round(size_bytes * self.share))) + self.more_ns


Price = Modelled | Measured
