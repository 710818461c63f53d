"""Which families are worth care: by what their candidates reached, and by what their bounds still allow.

Leaves out what care is (`planner.search.loop`).
"""

from collections.abc import Mapping
from dataclasses import replace

from costmodel.stages.strategies.amounts import NEVER
from planner.candidate.evaluate import Evaluated
from planner.search.space.family import Family
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem

MOST_STAGES, MOST_ACTIONS = 32, 200_000
"""Stages, and about how many actions of a step, up to which a family is cut with care: simulation takes as long."""
MOST_HALVED = 40_000
"""The same with split backwards, whose orders take longer to make."""
NUM_CAREFUL = 6
"""Families that are cut with care, besides those whose first look came near the best."""
NUM_LOOPED = 2
"""Families of several stages a place that are cut with care."""
PROMISING = 1.05
"""A cut within this of the best is worth care."""


class FamilySelector:
    """The families of a search, seen from its best plan.

    Parameters
    ----------
    prepared : PreparedProblem
    pool : CandidatePool
    bounds_ns : mapping of Family to int
        As known now; the search raises them.
    """

    def __init__(self, prepared: PreparedProblem, pool: CandidatePool, bounds_ns: Mapping[Family, int]) -> None:
        self._setting, self._incumbent, self._bounds_ns = prepared, pool, bounds_ns

    def top(self) -> list[Family]:
        """Return the open families whose first look came near the best, and a few more, the best first.

        Of several stages a place, whose simulation takes longer, only a few.
        """
        reached, best = self.best_by_family(), self._incumbent.best
        open_ones = [family for family in self.not_pruned() if family in reached]
        whole = [f for f in open_ones if f.chunks == 1]
        near = [f for f in whole if not best.fits or reached[f].step_time_ns <= best.step_time_ns * PROMISING]
        looped = [f for f in open_ones if f.chunks > 1]
        chosen = {*whole[:NUM_CAREFUL], *near[: 2 * NUM_CAREFUL], *looped[:NUM_LOOPED]}
        return [family for family in open_ones if family in chosen]

    def not_pruned(self) -> list[Family]:
        """Return families of whole backwards that may hold a better plan and are small enough to cut with care.

        Of those that differ in what they keep alone one: those that were looked at first, the best of them first, then
        those of the least bound.
        """
        first: dict[Family, Family] = {}
        for family in (*self.best_by_family(), *sorted(self._bounds_ns, key=self._bounds_ns.__getitem__)):
            config = replace(family.config, zero=0, recompute="none", offload="none")
            kind = replace(family, config=config)
            if kind not in first and not family.split and self.is_open(family) and self.is_small(family):
                first[kind] = family
        return list(first.values())

    def best_by_family(self) -> dict[Family, Evaluated]:
        """Return the best candidate of each family that has one among the best of their kinds, the best first."""
        found: dict[Family, Evaluated] = {}
        for each in sorted(self._incumbent.found.values(), key=lambda each: each.sort_key):
            family = self.family_of(each)
            if family:
                found.setdefault(family, each)
        return found

    def family_of(self, each: Evaluated) -> Family | None:
        """Return the family of a candidate whose stages its cuts placed."""
        return self._setting.family_of.get(each.candidate)

    def is_small(self, family: Family) -> bool:
        """Whether a family is a pipeline of not too many stages for care, and a step not of too many actions."""
        cuts = self._setting.cuts(family)
        most = MOST_HALVED if family.split else MOST_ACTIONS
        return 1 < cuts.num_stages <= MOST_STAGES and cuts.about_actions(cuts.num_places) <= most

    def is_open(self, family: Family, known: CandidatePool | None = None) -> bool:
        """Whether a family may hold a better plan that the target runs than any, or than those of some kind."""
        best = (known or self._incumbent).best
        if self._bounds_ns[family] >= (best.step_time_ns if best.fits else NEVER):
            return False
        return self._incumbent.runs_config(family.config, pipelined=self._setting.cuts(family).num_stages > 1)


def is_near(each: Evaluated, pool: CandidatePool) -> bool:
    """Whether a candidate is near the best, or nothing fits yet."""
    if not pool.best_fits:
        return True
    return each.fits and each.step_time_ns <= pool.best.step_time_ns * PROMISING
