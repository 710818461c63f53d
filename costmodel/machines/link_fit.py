"""From a measured table of (bytes, ns) to ranges of sizes with a latency and a bandwidth each.

Leaves out where the table comes from: `costmodel.profiling.links` measures, importers read.
"""

from itertools import pairwise

from costmodel.machines.links import SizeRange

STEEPEST_GBS = 1e6
"""Rate noted where a larger transfer took no longer than a smaller one."""

Table = tuple[tuple[int, int], ...]
"""Rows of (bytes, ns)."""


def fit_ranges(table: Table) -> tuple[SizeRange, ...]:
    """Fit latency and bandwidth to each interval of a table of (bytes, ns), rising in bytes.

    Times are first made to rise with size. An interval is the line through its two ends, so that the pieces meet;
    where that line would need a negative latency (the cost of a byte rises: caches are left) it is the
    line through the origin with the geometric mean of the ends' rates, which still rises throughout.
    """
    points = _rising(table)
    if len(points) == 1:
        size, ns = points[0]
        return (SizeRange(0, 0, size / max(ns, 1)),)
    ranges = []
    for i, ((size, ns), (next_size, next_ns)) in enumerate(pairwise(points)):
        slope = (next_ns - ns) / (next_size - size)
        latency = ns - slope * size
        if latency < 0:
            latency, slope = 0, ((ns / size) * (next_ns / next_size)) ** 0.5
        ranges.append(SizeRange(size if i else 0, round(latency), min(STEEPEST_GBS, 1 / max(slope, 1e-9))))
    return tuple(ranges)


def _rising(table: Table) -> list[tuple[int, float]]:
    """Return the nearest times that never fall with size: neighbours out of order share their mean."""
    blocks: list[tuple[float, int]] = []  # (mean time, entries)
    for _, ns in sorted(table):
        mean, count = float(ns), 1
        while blocks and blocks[-1][0] > mean:
            before, entries = blocks.pop()
            mean, count = (before * entries + mean * count) / (entries + count), entries + count
        blocks.append((mean, count))
    times = [mean for mean, count in blocks for _ in range(count)]
    return list(zip((size for size, _ in sorted(table)), times, strict=True))
