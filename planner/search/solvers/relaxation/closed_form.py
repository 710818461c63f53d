"""Bounds over all cuts that need no search.

- Sharing: n stages do all the work. If the graph has one sink, to which everything leads, the stage of the
  sink starts after each other stage has done one micro-batch and ends before each has done its last backward:
  with x its time and y the largest other one, m y <= T and m x + y + 2 c <= T, and x + (n - 1) y is at least
  the work W, so T >= (m W + 2 c) m / (n m - 1). With the optimizer's steps C no rank is done before m W / n + C / n.
  One stage takes m W + C. W grows by the host time of both ends of
  n - 1 edges, so the least over n counts.
- Line: all other atoms lead to a bottleneck atom or come from it (on a chain all are bottlenecks). Stages that hold
  one come one after the other, so with the time of those before it, b, each has b + m t <= T; a stage without one lies
  between two bottlenecks and is no larger than what lies there.
- An atom is not divided: its stage does it m times, after its longest forward path and before its longest
  backward path, of which every part is in its own stage or upstream, and before its optimizer step. All work in
  one stage takes m W + C.

Where backwards are split (`CutData.split`), forwards alone keep a stage waiting, and nothing has to follow its
work. To one sink leads the first forward of each other stage, at least a part p of its work: m x + p y + c <= T, so
T >= (m W + c) m / (n m - p). The other stages' backwards, at least a part q of their work, begin when a gradient has
come back: m q y + 2 c <= T, so that T >= (m W + c + 2 (n - 1) c / q) / (1 + (n - 1) / q). In a line, stages that hold
the work w come after at least g(w) of forwards, the least that atoms with this much work have: w grows by at most
(T - g(w)) / m with each.

Leaves out memory, latency but for the sink's and along a line, and host time but for the least of an edge.
"""

from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate
from math import ceil

from planner.search.solvers.relaxation.data import CutData


def closed_form_ns(data: CutData) -> int:
    """Return the larger of the bounds, in ns."""
    return max(_sharing(data), _indivisible(data), _line(data)) * data.unit_ns


def _sharing(data: CutData) -> int:
    """Return the least over all numbers of stages: more of them share the work, and lose more to messages."""
    m, end = data.num_microbatches, _end(data)
    one_sink = len(data.sinks) == 1 and data.sinks[0] in data.gradient_bottlenecks
    closing = sum(data.closing)
    bounds = [Fraction(m * _work(data) + closing)]
    for num in range(2, data.num_stages + 1):
        work = _work(data) + 2 * (num - 1) * end
        shared = Fraction(m * work + closing, num)
        led = (_led_split if data.split else _led)(data, work, num) if one_sink else Fraction(0)
        bounds.append(max(shared, led))
    return ceil(min(bounds))


def _led(data: CutData, work: int, num: int) -> Fraction:
    """Return the least step of `num` stages that all lead to the sink's, where gradients come back from it."""
    m = data.num_microbatches
    return Fraction((m * work + 2 * data.levels[0]) * m, num * m - 1)


def _led_split(data: CutData, work: int, num: int) -> Fraction:
    """Return the same where backwards are split."""
    m, c = data.num_microbatches, data.levels[0]
    rows = [(f, b) for f, b in zip(data.forward, data.backward, strict=True) if f + b]
    forwards = min((Fraction(f, f + b) for f, b in rows), default=Fraction(0))
    backwards = min((Fraction(b, f + b) for f, b in rows), default=Fraction(1))
    there = (m * work + c) * m / (num * m - forwards)
    if not backwards:
        return there
    rest = (num - 1) / backwards
    return max(there, (m * work + c + 2 * rest * c) / (1 + rest))


def _work(data: CutData) -> int:
    return sum(data.forward) + sum(data.backward)


def _end(data: CutData) -> int:
    """Return the least host time of one end of an edge, there and back.

    Stages of a graph that hangs together have an edge each, and all of them one less than there are stages.
    """
    joined = list(range(len(data.forward)))

    def root(atom: int) -> int:
        while joined[atom] != atom:
            atom = joined[atom]
        return atom

    for crossing in data.crossings:
        joined[root(crossing.consumer)] = root(crossing.producer)
    if len({root(atom) for atom in joined}) > 1:
        return 0
    return data.host * (2 if all(crossing.gradient for crossing in data.crossings) else 1)


def _line(data: CutData) -> int:
    """Return the least T for which the stages can hold all the work, by bisection."""
    bottlenecks = data.bottlenecks if data.split else data.gradient_bottlenecks
    if not bottlenecks:
        return 0
    works = [f + b for f, b in zip(data.forward, data.backward, strict=True)]
    between: dict[int, int] = {}
    for atom, work in enumerate(works):
        if atom not in bottlenecks:
            layer = sum(bottleneck < atom for bottleneck in bottlenecks)  # atoms are listed in a topological order
            between[layer] = between.get(layer, 0) + work
    largest, end = max(between.values(), default=0), _end(data)
    room = _room_of_split if data.split else _room
    low, high = 0, data.num_microbatches * sum(works)
    while low < high:
        middle = (low + high) // 2
        if room(data, middle, largest, end) >= sum(works):
            high = middle
        else:
            low = middle + 1
    return low


def _room(data: CutData, step: int, largest: int, end: int) -> int:
    """Return the most work that stages can hold: some in a line, each other one as much as lies between bottlenecks.

    One in the line loses an end of an edge, one between two others in it a second.
    """
    before, held, most = 0, 0, data.num_stages * largest
    for count in range(1, data.num_stages + 1):
        time = max(0, -(-(step - before) // data.num_microbatches))
        before += time + 2 * data.levels[0] + 2 * (_more(data, count + 1) - _more(data, count))
        most = max(most, held + max(0, time - end) + (data.num_stages - count) * largest)
        held += max(0, time - end * min(count, 2))
    return most


def _room_of_split(data: CutData, step: int, largest: int, end: int) -> int:
    """Return the same where only forwards come before a stage, and nothing has to follow."""
    rows = sorted((f / max(1, f + b), f, f + b) for f, b in zip(data.forward, data.backward, strict=True))
    works = list(accumulate((work for _, _, work in rows), initial=0))
    forwards = list(accumulate((forward for _, forward, _ in rows), initial=0))
    held, most = 0.0, float(data.num_stages * largest)
    for count in range(1, data.num_stages + 1):
        at = bisect_right(works, held) - 1
        share = rows[at][0] if at < len(rows) else 0.0
        before = forwards[at] + share * (held - works[at]) + (count - 1) * data.levels[0] + _more(data, count)
        time = max(0.0, (step - before) / data.num_microbatches)
        most = max(most, held + max(0.0, time - end) + (data.num_stages - count) * largest)
        held += max(0.0, time - end * min(count, 2))
    return ceil(most)


def _more(data: CutData, count: int) -> int:
    """Return what messages take longer on the way along a number of stages in a line, which slow links part."""
    return (count - 1) // data.together * max(0, data.far - data.levels[0]) if data.together else 0


def _indivisible(data: CutData) -> int:
    before = _longest(data, data.forward, gradient=False)
    after = [0] * len(before) if data.split else _longest(data, data.backward, gradient=True)
    tails = map(max, after, data.closing)
    works = zip(before, data.forward, data.backward, tails, strict=True)
    m, end = data.num_microbatches, _end(data)
    alone = m * _work(data) + sum(data.closing)
    return min(alone, max(head + m * (f + b + end) + tail for head, f, b, tail in works))


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
