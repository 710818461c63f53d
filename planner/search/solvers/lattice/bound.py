"""A lower bound on the step of every cut of a family, by flows.

A stage S of a fused schedule lets no step be shorter than the way down to it, its own work of all micro-batches, and
the way back up, or, instead of that, what ends its step. So a unit of flow over paths of atoms, each part of which ends
in some stage, weighs such bounds into one: each stage costs its work of one micro-batch for what passes it, and of all
for what ends in it. What ends in S holds at least b = F + B of every other stage that it met, and a round trip for each
edge between stages, so that S adds b(S) x (flow through S that does not end there) + m t(S) x (flow that ends in S) +
round trips x (flow that leaves S). That is a sum over stages, of which each part depends on its own stage alone, so
that the cheapest way through the lattice of downsets bounds all cuts at once; flows are improved by
`planner.search.solvers.lattice.flows`, the known cuts as cutting planes.

To beat a step T, no stage may have a bound of its own above T: pairs of downsets that have one are left out, and
so is what no way cheaper than T leads through. Then the cheapest way, or T where that is less, is a bound; the T where
both meet is sought by bisection. Leaves out memory and the host's time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.search.solvers.lattice.copies import Pattern, least_of_copies, pattern_of
from planner.search.solvers.lattice.downsets import Downsets, Ints, of_cuts
from planner.search.solvers.lattice.estimate import estimated
from planner.search.solvers.lattice.flows import Form, Master, PathWeights
from planner.search.solvers.lattice.graph import kinds_of, lattice_of
from planner.search.solvers.lattice.kernels import (
    Pairs,
    cheapest_from,
    cheapest_to,
    kept,
    near,
    pairs_of,
    prices,
    stage_bounds,
    way_of,
)
from planner.search.solvers.relaxation.data import CutData

MOST_PAIRS = 6_000_000
"""Pairs of downsets that are gone through again and again."""
STEP = 0.1
"""Part of the way from the best flows to those of the linear program (Ben-Ameur and Neto, Networks 49(1), 2007)."""
CLOSE = 2e-4
"""Part of a bound that is not worth more work."""
ENOUGH = 0.25
"""Part of what a bound lacks of T that it may still rise by where a lower T is tried."""
FEWER = 0.9
"""Part of the pairs that are left when the others are dropped."""
ROUNDED = 1e-9
"""Part of a bound by which sums of floats may be wrong."""


def downsets_of(data: CutData) -> tuple[CutData, Pattern, Downsets | None]:
    """Return a cut problem, its copies and its downsets; with those that are nearly copies where there are too many."""
    pattern = pattern_of(data)
    found = of_cuts(data, pattern)
    if found is None:
        pattern = pattern_of(data, nearly=True)
        data = least_of_copies(data, pattern)
        found = of_cuts(data, pattern)
    return data, pattern, found


@dataclass(frozen=True, slots=True)
class Proved:
    """The bound as it is now, in ns, a cut where it is the best by its bound, and how many pairs were gone through."""

    bound_ns: int
    partition: tuple[int, ...]
    work: int


class LatticeBound:
    """The bound of one cut problem, which can be asked to rise again and again.

    Parameters
    ----------
    data : CutData
    estimate : bool
        Whether the estimate of a step is bounded (`planner.search.solvers.lattice.estimate`), instead of the step
        itself.
    """

    def __init__(self, data: CutData, *, estimate: bool = False) -> None:
        data, pattern, self._downsets = downsets_of(data)
        count = data.num_microbatches
        self._bound = 0.0
        self._ways: dict[bytes, Ints] = {}
        self._least = float("inf")
        self._data = data
        if self._downsets is None:
            return
        kinds = kinds_of(data, pattern)
        self._lattice = lattice_of(data, self._downsets, kinds)
        form = Form((count, count), together=True)
        if estimate:
            self._lattice, kinds = estimated(self._lattice, kinds)
            form = Form((1, count - 1), together=False)
        self._master = Master(self._lattice, self._downsets, kinds, pattern, form)
        self._weights = self._master.even()

    def begin_with(self, other: "LatticeBound") -> None:
        """Take the flows by which the step of the same cuts was bounded: they bound the estimate as well."""
        if self._downsets is not None:
            self._weights = other.weights_of_both_parts

    @property
    def weights_of_both_parts(self) -> PathWeights:
        """Flows over paths and over stages alone, from those over two kinds of paths."""
        ends, carried = self._weights.ends.sum(axis=0), self._weights.carried.sum(axis=0)
        return PathWeights(np.array([ends, ends]), np.array([carried, np.zeros(len(carried))]))

    def rise(self, best_ns: int) -> Iterator[Proved]:
        """Yield cuts and bounds until no cut can be better than a known step, or hardly more can be proved.

        Whoever has enough stops to ask; what is known stays.
        """
        best = best_ns / self._data.unit_ns
        if self._downsets is None:
            return
        pairs = pairs_of(self._lattice, best, MOST_PAIRS)
        high = step = best
        while len(pairs.smaller) and high > self._bound * (1 + CLOSE):
            fewer = kept(pairs, stage_bounds(self._lattice, pairs) <= step)
            yield from self._rise_to(step, fewer)
            if self._bound < step:
                high = step
            step = (self._bound + high) / 2

    def _rise_to(self, step: float, pairs: Pairs) -> Iterator[Proved]:
        """Bound the cuts of which no stage allows more than a step, until that, or until hardly more can be proved."""
        at, master = self._lattice, self._master
        master.forget()
        for way in self._ways.values():
            if master.closed(way) <= step:
                master.learn(way)
        query, value = self._weights, -1.0
        while True:
            price = prices(at, pairs, master.flows(query))
            to = cheapest_to(at, pairs, price)
            stages = int(np.argmin(to[-1]))
            cheapest = float(to[-1, stages])
            if cheapest > value:
                value, self._weights = cheapest, query
            self._bound = max(self._bound, min(cheapest, step))
            if cheapest >= step:
                yield self._found((), len(price))
                return
            way = way_of(at, pairs, price, to, stages)
            self._ways[way.tobytes()] = way
            closed = master.closed(way)
            yield self._found(self._partition(way) if closed < self._least else (), len(price))
            self._least = min(self._least, closed)
            if self._weights is query:
                marks = near(at, pairs, price, to, cheapest_from(at, pairs, price), step)
                if np.count_nonzero(marks) < FEWER * len(marks):
                    pairs = kept(pairs, marks)
            master.learn(way)
            best = master.best()
            if best is None:
                return
            most, weights = best
            if most - value < max(value * CLOSE, ENOUGH * (step - value)):
                return
            query = self._weights.towards(weights, STEP)

    def _found(self, partition: tuple[int, ...], work: int) -> Proved:
        return Proved(int(np.ceil(self._bound * self._data.unit_ns * (1 - ROUNDED))), partition, work)

    def _partition(self, way: Ints) -> tuple[int, ...]:
        """Return the stage of each atom in a cut."""
        assert self._downsets is not None  # noqa: S101 - else there is no way
        return tuple((len(way) - 1 - self._downsets.holds[way[1:]].sum(axis=0)).tolist())
