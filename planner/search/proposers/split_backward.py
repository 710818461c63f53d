"""Where a search runs backwards in two halves: of its best plans and lines, and in families cut for that.

Leaves out which plans are halved (`planner.search.proposers.split_orders`), and when the search does it.
"""

from collections.abc import Generator

from planner.candidate.candidate import Candidate
from planner.search.proposers.local_search import improve
from planner.search.proposers.order_segments import NUM_EVALUATIONS, under_all
from planner.search.proposers.split_orders import split_plans
from planner.search.space.open_choices import allows_split_backward
from planner.search.state.pool import CandidatePool
from planner.search.subsolver import SearchState, Subsolver

WORK, FEWEST = 25_000, 4
"""Actions of all cuts by which the best one is improved, and how many cuts there must be time for."""


def may_split(state: SearchState) -> bool:
    """Whether backwards may run in two halves in the orders that the search makes for them."""
    return allows_split_backward(state.problem) and not state.setting.pinned.in_flight


class SplitBackward(Subsolver):
    """Backwards of the best plans, and of the best lines, in two halves."""

    name = "split backwards"

    def __init__(self, state: SearchState) -> None:
        super().__init__(state)
        self._made, self._improved = set[Candidate](), set[Candidate]()

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether backwards may run in halves."""
        return may_split(state)

    def steps(self) -> Generator[None]:
        """Split one plan after the other, then move atoms of what is best."""
        incumbent = self.state.incumbent
        lines = CandidatePool(incumbent.problem, incumbent.aim, incumbent.layer_alignment)
        lines.offer(each for each in incumbent.found.values() if each.candidate.line)
        for found in (lines, incumbent):
            if found.found and not found.best.num_apart_violations:
                yield from self._split(found)
                if found.found and self._improves(found):
                    yield

    def _split(self, found: CandidatePool) -> Generator[None]:
        """Run backwards of the best plans in halves."""
        state = self.state
        with state.setting.dropped.candidate():
            for family, each in split_plans(state.setting, found, state.pace, state.limits, self._made):
                if family:
                    state.bounds.know(family)
                found.offer([each])
                state.incumbent.offer([each])
                yield

    def _improves(self, found: CandidatePool) -> bool:
        """Move atoms of the best plan where that is in halves; return whether there was anything to do."""
        state, best = self.state, found.best
        own = state.setting.family_of.get(best.candidate)
        allowed = state.pace.allows(FEWEST * best.num_actions, state.limits)
        # from the same plan the same moves lead to the same one
        if not (own and own.split and allowed) or best.candidate in self._improved or state.setting.pinned_partition:
            return False
        cuts, number = state.setting.cuts(own), WORK // max(1, best.num_actions)
        self._improved.add(best.candidate)
        with state.setting.dropped.candidate():
            better = improve(cuts, best, min(NUM_EVALUATIONS, number), state.limits)
            under_all(cuts, better, state.incumbent)
        self._improved.add(state.incumbent.best.candidate)
        return True
