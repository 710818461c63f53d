"""Alpa (Zheng et al., OSDI 2022): stages of one linear order, each on a slice of the mesh, by two nested optimisations.

Modelled: between operators, dynamic programming over the order (section 5.2): each stage gets a slice of 1, 2, 4, ..
devices of a host, or of whole hosts, and the step takes the sum of all stages' times and (m - 1) times the slowest's;
for the times that the slowest may take, as many as cannot be ruled out, the least sum is found. Within a stage, the
strategy that takes least of those whose bytes fit with the micro-batches in flight: replicas x tensor parallelism over
the slice, ZeRO, recompute, on our costs, in place of its integer program over shardings of each operator. Operators are
joined to at most `MOST_PIECES` first, as it clusters layers. Left out, as there: messages between stages.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.search.budget import Deadline
from planner.search.published.pieces import Floats, Pieces
from planner.search.published.prices import View, Ways, ways_of
from planner.search.published.proposals import ProposedStage

MOST_PIECES = 32


@dataclass(frozen=True, eq=False)
class Slice:
    """One way to use a number of devices: each piece's time for a micro-batch, its states, and bytes in flight."""

    devices: int
    time_ns: Floats
    static_bytes: Floats
    activation_bytes: Floats


@dataclass(frozen=True, slots=True)
class Chosen:
    """A stage: the piece from prefix `start` to prefix `stop`, and the place of its slice in the list."""

    start: int
    stop: int
    slice: int


def propose(view: View, memory_bytes: float, limits: Deadline) -> Sequence[ProposedStage] | None:
    """Return the stages whose sum and slowest, as in Alpa's formula, are least."""
    groups = view.joined(MOST_PIECES)
    masks = [(1 << number) - 1 for number in range(len(groups) + 1)]
    pieces = Pieces.between(masks, groups)
    allowed = pieces.inside & ~pieces.mixes(view.evaluator.apart)
    ways = ways_of(view, pieces, "tensor", "zero", "recompute")
    kinds = [(each, count) for each in ways for count in view.replicas if is_slice(view, count * each.devices)]
    slices = [_slice(each, count, allowed) for each, count in kinds]
    found = best_line(slices, view.num_devices, view.num_microbatches, memory_bytes, limits)
    if found is None:
        return None
    stages = []
    for stage in found[1]:
        each, count = kinds[stage.slice]
        stages.append(ProposedStage(tuple(pieces.atoms(stage.start, stage.stop)), each.on(count)))
    return stages


def is_slice(view: View, devices: int) -> bool:
    """Whether a mesh has slices of this size: a power of two within a host, or whole hosts."""
    host = view.prepared.problem.machines.hosts[0].devices
    small = devices <= host and devices & (devices - 1) == 0
    return devices <= view.num_devices and (small or devices % host == 0)


def _slice(ways: Ways, replicas: int, allowed: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> Slice:
    time_ns = np.where(allowed, ways.own_ns(replicas), np.inf)
    return Slice(replicas * ways.devices, time_ns, ways.static_bytes(replicas), ways.activation_bytes)


def best_line(
    slices: Sequence[Slice], num_devices: int, num_microbatches: int, memory_bytes: float, limits: Deadline
) -> tuple[float, list[Chosen]] | None:
    """Return the least sum of times + (m - 1) slowest, and its stages, first stage first; None where nothing fits.

    The sum falls as the slowest may take longer: between two times it is at least that of the longer one, and where
    that with m - 1 of the shorter one is no better than the best, nothing between them is tried.
    """
    size = len(slices[0].time_ns) if slices else 0
    by_depth = [_fastest(slices, depth, memory_bytes) for depth in range(1, min(num_devices, size - 1) + 1)]
    times = _times(by_depth)
    best = _least_sum(by_depth, num_devices, times[-1], num_microbatches) if len(times) else None
    if best is None:
        return None
    between = [(0, len(times) - 1, best.sum_ns)]
    while between and not limits.expired:
        low, high, least_ns = between.pop()
        if low >= high or least_ns + (num_microbatches - 1) * times[low] >= best.total_ns:
            continue
        middle = (low + high) // 2
        found = _least_sum(by_depth, num_devices, times[middle], num_microbatches)
        between.append((middle + 1, high, least_ns))
        if found:
            best = min(best, found, key=lambda each: each.total_ns)
            between.append((low, middle, found.sum_ns))
    return best.total_ns, best.stages


@dataclass(frozen=True, slots=True)
class _Line:
    """Stages with the sum of their times, and that with m - 1 of the slowest."""

    sum_ns: float
    total_ns: float
    stages: list[Chosen]


Fastest = dict[int, tuple[Floats, "np.ndarray[tuple[int, int], np.dtype[np.int64]]"]]
"""By devices of a slice: the least time of each piece, and which slice takes it."""


def _fastest(slices: Sequence[Slice], depth: int, memory_bytes: float) -> Fastest:
    """Return the fastest slices that fit with a number of micro-batches in flight."""
    found: Fastest = {}
    for number, each in enumerate(slices):
        fits = each.static_bytes + depth * each.activation_bytes <= memory_bytes
        time_ns = np.where(fits, each.time_ns, np.inf)
        if each.devices not in found:
            found[each.devices] = np.full_like(time_ns, np.inf), np.zeros(time_ns.shape, np.int64)
        least, which = found[each.devices]
        better = time_ns < least
        least[better], which[better] = time_ns[better], number
    return found


def _times(by_depth: Sequence[Fastest]) -> Floats:
    """Return the times that the slowest stage may take, rising."""
    known = [least[np.isfinite(least)] for fastest in by_depth for least, _ in fastest.values()]
    return np.unique(np.concatenate(known)) if known else np.zeros(0)


def _least_sum(by_depth: Sequence[Fastest], num_devices: int, most_ns: float, num_microbatches: int) -> _Line | None:
    """Return the least sum of times of stages, none over `most_ns`: the last stages first, by how many follow."""
    size = len(next(iter(by_depth[0].values()))[0])
    after = np.full((size, num_devices + 1), np.inf)  # by prefix and devices of what follows it
    after[-1, 0] = 0.0
    ends: list[tuple[float, int, int]] = []
    steps = []
    for depth, fastest in enumerate(by_depth):
        now, back = np.full_like(after, np.inf), np.zeros((*after.shape, 2), np.int64)
        for devices, (least, _) in fastest.items():
            time_ns = np.where(least <= most_ns, least, np.inf)
            sums = time_ns[:, :, None] + after[None, :, : num_devices + 1 - devices]
            stops, totals = sums.argmin(1), sums.min(1)
            better = totals < now[:, devices:]
            now[:, devices:][better] = totals[better]
            back[:, devices:, 0][better], back[:, devices:, 1][better] = stops[better], devices
        steps.append(back)
        used = int(now[0].argmin())
        ends.append((float(now[0, used]), depth, used))
        after = now
    total, depth, used = min(ends)
    if not np.isfinite(total):
        return None
    chain, start, slowest = [], 0, 0.0
    while depth >= 0:
        stop, devices = map(int, steps[depth][start, used])
        slowest = max(slowest, float(by_depth[depth][devices][0][start, stop]))
        chain.append(Chosen(start, stop, int(by_depth[depth][devices][1][start, stop])))
        start, used, depth = stop, used - devices, depth - 1
    return _Line(total, total + (num_microbatches - 1) * slowest, chain)
