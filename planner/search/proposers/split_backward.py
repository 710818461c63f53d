"""Where a search runs backwards in two halves: of its best plans and lines, and in families cut for that.

Leaves out which plans are halved (`planner.search.proposers.split_orders`), and when the search does it.
"""

from collections.abc import Iterable

from planner.candidate.candidate import Candidate
from planner.search.bounders.family_bounds import FamilyBounds
from planner.search.budget import Deadline, OrderPace
from planner.search.proposers.local_search import improve
from planner.search.proposers.order_segments import NUM_EVALUATIONS, under_all
from planner.search.proposers.split_orders import split_plans
from planner.search.space.family import Family
from planner.search.space.open_choices import allows_split_backward, with_split_backward
from planner.search.state.pool import CandidatePool

SETTLE_PART = 0.3
"""Most of the time left of the whole search for bounds of halves that need no search."""
WORK, FEWEST = 25_000, 4
"""Actions of all cuts by which the best one is improved, and how many cuts there must be time for."""


class SplitBackward:
    """Split backwards within one search.

    Parameters
    ----------
    bounds : FamilyBounds
        With the search's setting and incumbent.
    pace : OrderPace
    """

    def __init__(self, bounds: FamilyBounds, pace: OrderPace) -> None:
        self._bounds, self._setting, self._incumbent = bounds, bounds.setting, bounds.incumbent
        self.is_open, self._pace = allows_split_backward(self._setting.problem), pace
        self._improved: set[Candidate] = set()

    def split_best(self, limits: Deadline, whole: Deadline) -> None:
        """Run backwards of the best plans in halves, and of the best lines, and bound what is then the best.

        `limits` are for plans, a part of the `whole` that the search has left for bounds.
        """
        if not self.is_open or self._setting.pinned.in_flight:
            return
        incumbent = self._incumbent
        lines = CandidatePool(incumbent.problem, incumbent.aim, incumbent.layer_alignment)
        lines.offer(each for each in incumbent.found.values() if each.candidate.line)
        for found in (lines, incumbent):
            with self._setting.dropped.candidate():
                if found.found and not found.best.num_apart_violations:
                    self._split_backward(found, limits)
            incumbent.offer(found.found.values())
        if self._bounds.split_counts:
            self._bounds.settle(Deadline(whole.remaining_s * SETTLE_PART))
        incumbent.say("split backwards")

    def _split_backward(self, incumbent: CandidatePool, limits: Deadline) -> None:
        """Run backwards of an incumbent's best plans in halves, and move atoms of what is best then."""
        for family, each in split_plans(self._setting, incumbent, self._pace, limits):
            if family:
                self._bounds.know(family)
            incumbent.offer([each])
        best, own = incumbent.best, self._setting.family_of.get(incumbent.best.candidate)
        allowed = self._pace.allows(FEWEST * best.num_actions, limits)
        anew = best.candidate not in self._improved  # from the same plan the same moves lead to the same one
        if own and own.split and allowed and anew and not self._setting.pinned_partition:
            cuts, number = self._setting.cuts(own), WORK // max(1, best.num_actions)
            under_all(cuts, improve(cuts, best, min(NUM_EVALUATIONS, number), limits), incumbent)
            if not limits.expired:
                self._improved.add(best.candidate)

    def families(self, families: Iterable[Family]) -> list[Family]:
        """Return these families with split backwards, to be annealed; none where halves are closed."""
        if not self.is_open or self._setting.pinned.in_flight:
            return []
        found = list(map(with_split_backward, families))
        for family in found:
            self._bounds.know(family)
        return found
