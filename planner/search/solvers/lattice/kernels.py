"""The pairs of downsets that may be a stage, and the cheapest way through them, compiled.

In the notation of `planner.search.solvers.lattice.bound`. Leaves out where flows come from.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.search.solvers.compiled import compiled
from planner.search.solvers.lattice.downsets import Ints
from planner.search.solvers.lattice.graph import AHEAD, BACK, CLOSING, PATH, THERE, WORK, Floats, Lattice

NEVER = 1e300
Small = NDArray[np.int32]
Marks = NDArray[np.bool_]


class Pairs(NamedTuple):
    """Pairs of a downset and one that it contains, whose difference may be a stage; those of a larger one together.

    Attributes
    ----------
    first : array of shape (downsets + 1,)
    smaller : array of shape (pairs,)
    shared_first : array of shape (pairs + 1,)
        Where the kinds of edges begin that pass the stage by, out of both downsets.
    shared, shared_counts : arrays
        Those kinds, and at most how many of their edges.
    """

    first: Ints
    smaller: Small
    shared_first: Ints
    shared: Small
    shared_counts: Small


class PathFlows(NamedTuple):
    """Flows that weigh paths: by downset what ended in it and what leaves it; by kind of edge what each carries.

    Attributes
    ----------
    ended : array of shape (downsets, 2)
        By way.
    leaving : array of shape (downsets, 4)
        By way the flow that leaves, then that times the messages' times.
    carried : array of shape (kinds, 4)
        The same of one edge.
    """

    ended: Floats
    leaving: Floats
    carried: Floats


@compiled
def _grown(values: Small) -> Small:
    """Return the same with room for as many again."""
    more = np.empty(2 * len(values), np.int32)
    for i in range(len(values)):
        more[i] = values[i]
    return more


@compiled
def pairs_of(at: Lattice, step: float, most: int) -> Pairs:
    """Return pairs whose stage has work for no more than a step; none at all where there are more than `most`."""
    size = len(at.sums)
    seen, stack = np.full(size, -1, np.int64), np.empty(size, np.int64)
    first, smaller = np.zeros(size + 1, np.int64), np.empty(1024, np.int32)
    num = 0
    for d in range(1, size):
        top, stack[0] = 1, d
        while top > 0:
            top -= 1
            below = stack[top]
            for i in range(at.first[below], at.first[below + 1]):
                s = at.below[i]
                if seen[s] == d or (at.sums[d, WORK] - at.sums[s, WORK]) * at.num_microbatches > step:
                    continue
                if num == most:
                    return _shared(at, np.zeros(size + 1, np.int64), smaller[:0])
                if num == len(smaller):
                    smaller = _grown(smaller)
                seen[s] = d
                stack[top] = s
                top += 1
                smaller[num] = s
                num += 1
        first[d + 1] = num
    return _shared(at, first, smaller[:num])


@compiled
def _shared(at: Lattice, first: Ints, smaller: Small) -> Pairs:
    """Return pairs with the edges that pass them by."""
    shared_first = np.zeros(len(smaller) + 1, np.int64)
    shared, counts = np.empty(1024, np.int32), np.empty(1024, np.int32)
    num = 0
    for d in range(1, len(at.sums)):
        for p in range(first[d], first[d + 1]):
            s = smaller[p]
            while num + at.crossing_first[s + 1] - at.crossing_first[s] > len(shared):
                shared, counts = _grown(shared), _grown(counts)
            j, end = at.crossing_first[d], at.crossing_first[d + 1]
            for i in range(at.crossing_first[s], at.crossing_first[s + 1]):
                while j < end and at.crossing[j] < at.crossing[i]:
                    j += 1
                if j < end and at.crossing[j] == at.crossing[i]:
                    shared[num], counts[num] = at.crossing[i], min(at.counts[i], at.counts[j])
                    num += 1
            shared_first[p + 1] = num
    return Pairs(first, smaller, shared_first, shared[:num], counts[:num])


@compiled
def heads_of(at: Lattice, pairs: Pairs) -> Floats:
    """Return for each pair the longest path that leads into its stage, by way."""
    found = np.zeros((len(pairs.smaller), 2))
    for d in range(1, len(at.sums)):
        for p in range(pairs.first[d], pairs.first[d + 1]):
            s, i = pairs.smaller[p], pairs.shared_first[p]
            for j in range(at.crossing_first[s], at.crossing_first[s + 1]):
                kind, both = at.crossing[j], 0
                if i < pairs.shared_first[p + 1] and pairs.shared[i] == kind:
                    both = pairs.shared_counts[i]
                    i += 1
                if at.counts[j] > both:
                    for way in (BACK, THERE):
                        found[p, way] = max(found[p, way], at.heads[way, kind])
    return found


@compiled
def stage_bounds(at: Lattice, pairs: Pairs) -> Floats:
    """Return the least step that the stage of each pair allows."""
    heads, found = heads_of(at, pairs), np.empty(len(pairs.smaller))
    for d in range(1, len(at.sums)):
        for p in range(pairs.first[d], pairs.first[d + 1]):
            s = pairs.smaller[p]
            closing = at.sums[d, CLOSING] - at.sums[s, CLOSING]
            own = (at.sums[d, WORK] - at.sums[s, WORK]) * at.num_microbatches
            found[p] = own + max(heads[p, BACK], heads[p, THERE] + closing)
    return found


@compiled
def fewest(at: Lattice, pairs: Pairs, needed: Floats) -> Floats:
    """Return what the stages of a way from nothing to each downset need together at least."""
    found = np.full(len(at.sums), NEVER)
    found[0] = 0.0
    for d in range(1, len(at.sums)):
        for p in range(pairs.first[d], pairs.first[d + 1]):
            found[d] = min(found[d], found[pairs.smaller[p]] + needed[p])
    return found


@compiled
def kept(pairs: Pairs, keep: Marks) -> Pairs:
    """Return the pairs that are to be kept."""
    num = num_shared = 0
    for p in range(len(keep)):
        if keep[p]:
            num += 1
            num_shared += pairs.shared_first[p + 1] - pairs.shared_first[p]
    first, smaller = np.zeros(len(pairs.first), np.int64), np.empty(num, np.int32)
    shared_first = np.zeros(num + 1, np.int64)
    shared, counts = np.empty(num_shared, np.int32), np.empty(num_shared, np.int32)
    num = num_shared = 0
    for d in range(len(pairs.first) - 1):
        for p in range(pairs.first[d], pairs.first[d + 1]):
            if keep[p]:
                smaller[num] = pairs.smaller[p]
                for i in range(pairs.shared_first[p], pairs.shared_first[p + 1]):
                    shared[num_shared], counts[num_shared] = pairs.shared[i], pairs.shared_counts[i]
                    num_shared += 1
                num += 1
                shared_first[num] = num_shared
        first[d + 1] = num
    return Pairs(first, smaller, shared_first, shared, counts)


@compiled
def prices(at: Lattice, pairs: Pairs, flows: PathFlows) -> Floats:
    """Return what the stage of each pair costs, weighed by flows."""
    found = np.empty(len(pairs.smaller))
    for d in range(1, len(at.sums)):
        for p in range(pairs.first[d], pairs.first[d + 1]):
            s = pairs.smaller[p]
            back, there = flows.leaving[d, BACK], flows.leaving[d, THERE]
            latency = flows.leaving[d, 2] + flows.leaving[d, 3]
            for i in range(pairs.shared_first[p], pairs.shared_first[p + 1]):
                kind, count = pairs.shared[i], pairs.shared_counts[i]
                back -= flows.carried[kind, BACK] * count
                there -= flows.carried[kind, THERE] * count
                latency -= (flows.carried[kind, 2] + flows.carried[kind, 3]) * count
            own = (at.sums[d, WORK] - at.sums[s, WORK]) * at.num_microbatches
            closing = at.sums[d, CLOSING] - at.sums[s, CLOSING]
            found[p] = (
                back * (at.sums[d, PATH] - at.sums[s, PATH])
                + there * (at.sums[d, AHEAD] - at.sums[s, AHEAD])
                + latency
                + own * (flows.ended[d, BACK] - flows.ended[s, BACK])
                + (own + closing) * (flows.ended[d, THERE] - flows.ended[s, THERE])
            )
    return found


@compiled
def cheapest_to(at: Lattice, pairs: Pairs, price: Floats) -> Floats:
    """Return the cheapest way from nothing to each downset, by exactly so many stages."""
    size, most = len(at.sums), at.num_stages
    found = np.full((size, most + 1), NEVER)
    found[0, 0] = 0.0
    low, high = np.full(size, most + 1, np.int64), np.zeros(size, np.int64)
    low[0] = 0
    for d in range(1, size):
        for p in range(pairs.first[d], pairs.first[d + 1]):
            s = pairs.smaller[p]
            if low[s] <= most:
                low[d] = min(low[d], low[s] + 1)
                high[d] = max(high[d], min(high[s] + 1, most))
                for k in range(low[s], min(high[s], most - 1) + 1):
                    cost = found[s, k] + price[p]
                    if cost < found[d, k + 1]:
                        found[d, k + 1] = cost
    return found


@compiled
def cheapest_from(at: Lattice, pairs: Pairs, price: Floats) -> Floats:
    """Return the cheapest way from each downset to the whole, by at most so many stages."""
    size, most = len(at.sums), at.num_stages
    found = np.full((size, most + 1), NEVER)
    for k in range(most + 1):
        found[size - 1, k] = 0.0
    low = np.full(size, most + 1, np.int64)
    low[size - 1] = 0
    for d in range(size - 1, 0, -1):
        if low[d] >= most:
            continue
        for p in range(pairs.first[d], pairs.first[d + 1]):
            s = pairs.smaller[p]
            low[s] = min(low[s], low[d] + 1)
            for k in range(low[d], most):
                cost = found[d, k] + price[p]
                if cost < found[s, k + 1]:
                    found[s, k + 1] = cost
    return found


@compiled
def near(at: Lattice, pairs: Pairs, price: Floats, to: Floats, onward: Floats, step: float) -> Marks:
    """Return whether for each pair through which some way is no dearer than a step."""
    found, most = np.zeros(len(price), np.bool_), at.num_stages
    for d in range(1, len(at.sums)):
        for p in range(pairs.first[d], pairs.first[d + 1]):
            s = pairs.smaller[p]
            for k in range(most):
                if to[s, k] + price[p] + onward[d, most - k - 1] <= step:
                    found[p] = True
                    break
    return found


@compiled
def way_of(at: Lattice, pairs: Pairs, price: Floats, to: Floats, stages: int) -> Ints:
    """Return the downsets of the cheapest way by exactly so many stages."""
    found = np.zeros(stages + 1, np.int64)
    found[stages] = d = len(at.sums) - 1
    for k in range(stages, 0, -1):
        for p in range(pairs.first[d], pairs.first[d + 1]):
            s = pairs.smaller[p]
            if to[s, k - 1] + price[p] <= to[d, k]:
                found[k - 1] = s
                break
        d = found[k - 1]
    return found


def compile_all() -> None:
    """Run on next to nothing, so that numba keeps what it compiles."""
    ints = np.zeros(0, np.int64)
    rows = np.array([0, 0, 0])
    at = Lattice(np.zeros((2, 4)), np.array([0]), np.array([0, 0, 1]), ints, rows, ints, np.zeros((2, 0)), 1, 1)
    pairs = pairs_of(at, 1.0, 1)
    price = prices(at, pairs, PathFlows(np.zeros((2, 2)), np.zeros((2, 4)), np.zeros((0, 4))))
    to, onward = cheapest_to(at, pairs, price), cheapest_from(at, pairs, price)
    way_of(at, pairs, price, to, 1)
    kept(pairs, near(at, pairs, price, to, onward, 1.0))
    fewest(at, pairs, stage_bounds(at, pairs))
