"""Bounds over all cuts that need no search.

- Sharing: n stages do all the work. If the graph has one sink, to which everything leads, the stage of the
  sink starts after each other stage has done one micro-batch and ends before each has done its last backward:
  with x its time and y the largest other one, m y <= T and m x + y + 2 c <= T, and x + (n - 1) y is at least
  the work W, so T >= (m W + 2 c) m / (n m - 1). One stage takes m W.
- An atom is not divided: its stage does it m times, after its longest forward path and before its longest
  backward path, of which every part stands in its own stage or upstream.

Leaves out memory, and latency but for the sink's.
"""

from fractions import Fraction
from math import ceil

from planner.search.cut.data import CutData


def closed_form_ns(data: CutData) -> int:
    """Return the larger of the bounds, in ns."""
    return max(_sharing(data), _indivisible(data)) * data.unit_ns


def _sharing(data: CutData) -> int:
    num, m = data.num_stages, data.num_microbatches
    work = sum(data.forward) + sum(data.backward)
    bound = Fraction(m * work, num)
    if num > 1 and len(data.sinks) == 1 and data.sinks[0] in data.gradient_waists:
        bound = Fraction((m * work + 2 * data.levels[0]) * m, num * m - 1)
    return min(ceil(bound), m * work)


def _indivisible(data: CutData) -> int:
    before = _longest(data, data.forward, gradient=False)
    after = _longest(data, data.backward, gradient=True)
    works = zip(before, data.forward, data.backward, after, strict=True)
    return max(head + data.num_microbatches * (f + b) + tail for head, f, b, tail in works)


def _longest(data: CutData, work: tuple[int, ...], *, gradient: bool) -> list[int]:
    """Longest path before each atom; atoms are listed in a topological order."""
    sources: list[set[int]] = [set() for _ in work]
    for crossing in data.crossings:
        if crossing.gradient or not gradient:
            sources[crossing.consumer].add(crossing.producer)
    longest = [0] * len(work)
    for atom, row in enumerate(sources):
        longest[atom] = max((longest[s] + work[s] for s in row), default=0)
    return longest
