"""A bound of pipelines whose atoms form a chain, with what stages hold in it: over all cuts and all recompute by stage.

F and whole B, one stage a place, gradients back along the chain. A stage of work t a micro-batch that has room for q of
them, M >= static + q a, holds each for at least a path: its own work and that of all stages behind it. So of m
micro-batches it takes Y >= m path / q, and m t besides, where t grows by what has to run again for q to fit: the
forwards that free most for their time, any part of them. Before the stage behind starts its first, and after it ends
its last, comes the stage's own micro-batch: Y >= t + Y'. Labels (Y, path) from the sink, rounded down to few values.
Leaves out messages, what closes a step, and what is kept of operators that share it but for the last of them.
"""

from itertools import pairwise

import numpy as np

from planner.search.bounders.pipeline_fill import ChainBound, line_of
from planner.search.space.even_stages import Floats, Ints
from planner.search.space.family import Family
from planner.search.state.prepared import PreparedProblem

MOST_ATOMS, MOST_STAGES, MOST_IN_FLIGHT = 320, 32, 64
"""Atoms and stages up to which a family is bounded so, and micro-batches in flight that are told apart."""
STEPS = 2000
"""Values of Y up to the best step that are told apart."""
NUM_PRICES = 8
"""Prices of freed bytes that are told apart; of those in between the lower one counts."""


def held_chain_ns(prepared: PreparedProblem, family: Family, most_ns: int) -> int:
    """Return a bound on every step of a family, no higher than `most_ns`; 0 where this says nothing."""
    config, atoms = family.config, prepared.atoms
    places = prepared.families.max_pipeline_stages(family)
    small = len(atoms) <= MOST_ATOMS and 1 < places <= MOST_STAGES
    plain = config.expert == 1 and config.offload == "none" and prepared.free_bounds.fills(family)
    chain = len(prepared.free_bounds.bottlenecks.pieces) == len(atoms)
    if not (small and plain and chain and all(prepared.problem.memory_limits_bytes)):
        return 0
    line = line_of(prepared, family, adds=True)
    return 0 if line is None else int(_Chain(prepared, family, line, float(most_ns)).least_ns(places))


class _Chain:
    """Squares over the stretches of a chain, one row and column a position."""

    def __init__(self, prepared: PreparedProblem, family: Family, line: ChainBound, most_ns: float) -> None:
        problem, families = prepared.problem, prepared.families
        self._most, self._fastest = most_ns, max(problem.speeds)
        self._count, places = families.microbatches_per_replica(family), families.max_pipeline_stages(family)
        pieces = prepared.free_bounds.bottlenecks.pieces
        states = families.models(family.microbatch_size)[0].states_of(family.config, families.stage_ranks(family))
        self.works = _over(np.array(line.works) / self._fastest)
        self._room = max(problem.memory_limits_bytes) - _over(np.array([sum(states[i] for i in row) for row in pieces]))
        self._kept = _over(np.array(line.kept))
        self._price_rows(np.array(line.spared, float), np.array(line.again) / self._fastest)
        numbers = range(1, 1 + min(self._count, MOST_IN_FLIGHT, 2 * places))
        self.taken = [(number, self._with_room_for(number)) for number in numbers]

    def _price_rows(self, spared: Floats, again: Floats) -> None:
        """Sort what may be freed by its price, the lowest first, as squares of bytes."""
        prices = np.divide(again, spared, out=np.full(len(spared), np.inf), where=spared > 0)
        known = np.unique(prices[np.isfinite(prices)])
        kinds = known[:: -(-len(known) // NUM_PRICES)] if len(known) else known
        ends = (*kinds, np.inf)
        self._freed = [
            (low, _over(np.where((prices >= low) & (prices < high), spared, 0.0))) for low, high in pairwise(ends)
        ]

    def _with_room_for(self, number: int) -> Floats:
        """Return what stretches take of a micro-batch with this number in flight; infinite where these do not fit."""
        lacking = np.maximum(0.0, self._kept - self._room / number)
        works = np.where(self._room > 0, self.works, np.inf)
        for price, freed in self._freed:
            part = np.minimum(lacking, freed)
            works, lacking = works + part * price, lacking - part
        found: Floats = np.where(lacking > 1.0, np.inf, works)
        return found

    def least_ns(self, places: int) -> float:
        """Return the least Y of any number of stages."""
        cut, reached, path = np.array([len(self.works) - 1]), np.zeros(1), np.zeros(1)
        least = self._most
        for _ in range(places):
            first, label = np.nonzero(self.works[:, cut] * self._count < least)
            inside = first < cut[label]
            first, label = first[inside], label[inside]
            reached, path = self._extended(first, cut[label], reached[label], path[label])
            least = min(least, float(reached[first == 0].min(initial=np.inf)))
            going = np.flatnonzero((reached < least) & (first > 0))
            cut, reached, path = self._undominated(first[going], reached[going], path[going])
            if not len(cut):
                break
        return least

    def _extended(self, first: Ints, after: Ints, reached: Floats, path: Floats) -> tuple[Floats, Floats]:
        """Return Y and path of labels with the stretches in front of them."""
        works = self.works[first, after]
        path = path + works
        least = self._count * self.taken[-1][1][first, after]  # with as many in flight or more
        for number, taken in self.taken:
            least = np.minimum(least, np.maximum(self._count * taken[first, after], self._count / number * path))
        return np.maximum(least, reached + works), path

    def _undominated(self, cut: Ints, reached: Floats, path: Floats) -> tuple[Ints, Floats, Floats]:
        """Return labels of which none is better than another of its cut, Y rounded down."""
        unit = self._most / STEPS
        reached = np.floor(reached / unit) * unit
        order = np.lexsort((path, reached, cut))
        cut, reached, path = cut[order], reached[order], path[order]
        kept, lowest = np.zeros(len(cut), dtype=bool), np.inf
        for i, (here, size) in enumerate(zip(cut.tolist(), path.tolist(), strict=True)):
            if not i or here != cut[i - 1]:
                lowest = np.inf
            kept[i] = size < lowest
            lowest = min(lowest, size)
        return cut[kept], reached[kept], path[kept]


def _over(amounts: Floats) -> Floats:
    """Return the sums of stretches: row i, column j of what lies from i to before j."""
    sums = np.concatenate([[0.0], np.cumsum(amounts)])
    found: Floats = sums[None, :] - sums[:, None]
    return found
