"""Where a search runs backwards in two halves: of its best plans and lines, and in families cut for that.

Leaves out which plans are halved (`planner.search.proposers.split_orders`), and when the search does it.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter

from costmodel.stages.config import StageConfig
from planner.candidate.candidate import Candidate
from planner.candidate.order import WITHIN_LIMIT
from planner.graph.atoms import Partition
from planner.search.proposers.balanced_partitions import balanced_partitions
from planner.search.proposers.local_search import improve
from planner.search.proposers.order_segments import NUM_EVALUATIONS, under_all
from planner.search.proposers.split_orders import split_plans
from planner.search.space.family import Family
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
        self._made: set[Candidate] = set()

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether backwards may run in halves."""
        return may_split(state)

    def steps(self) -> Generator[None]:
        """Split one plan after the other."""
        state = self.state
        for found in _lines_and_all(state):
            with state.setting.dropped.candidate():
                for family, each in split_plans(state.setting, found, state.pace, state.limits, self._made):
                    if family:
                        state.bounds.know(family)
                    found.offer([each])
                    state.incumbent.offer([each])
                    yield


class SplitLocalSearch(Subsolver):
    """The best plan, and the best line, where its backwards are split: atoms moved across cuts."""

    name = "local search in halves"

    def __init__(self, state: SearchState) -> None:
        super().__init__(state)
        self._improved: set[Candidate] = set()

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether backwards may run in halves, and there are cuts to move; those of lines stay lines."""
        return may_split(state) and not state.setting.pinned_partition

    def steps(self) -> Generator[None]:
        """Move atoms of the best plan, until no move that there is time for shortens its step."""
        for found in _lines_and_all(self.state):
            while self._improves(found):
                yield

    def _improves(self, found: CandidatePool) -> bool:
        """Move atoms of the best plan where that is in halves; return whether there was anything to do."""
        state, best = self.state, found.best
        own = state.setting.family_of.get(best.candidate)
        allowed = state.pace.allows(FEWEST * best.num_actions, state.limits)
        # from the same plan the same moves lead to the same one
        if not (own and own.split and allowed) or best.candidate in self._improved:
            return False
        cuts, number = state.setting.cuts(own), WORK // max(1, best.num_actions)
        with state.setting.dropped.candidate():
            better = improve(cuts, best, min(NUM_EVALUATIONS, number), self.slice)
            under_all(cuts, better, state.incumbent)
        if not self.slice.expired:  # else it goes on in the next turn: what was simulated is known
            self._improved |= {best.candidate, better.candidate}
        return True


class SplitSiblings(Subsolver):
    """Where the best plan has split backwards: balanced cuts of families like its own, which whole may be too slow."""

    name = "split siblings"

    def __init__(self, state: SearchState) -> None:
        super().__init__(state)
        self._seen: set[Family] = set()

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether backwards may run in halves, and cuts are open."""
        return super().supports(state) and may_split(state) and not state.setting.pinned_partition

    def steps(self) -> Generator[None]:
        """Make the orders of one cut after the other, the one with the least bound on its step first."""
        state = self.state
        for least_ns, family, partition in sorted(self._open_cuts(), key=itemgetter(0)):
            cuts = state.setting.cuts(family)
            allowed = state.pace.allows(cuts.about_actions(cuts.num_places), state.limits)
            if allowed and least_ns < state.incumbent.best.step_time_ns:
                state.incumbent.offer(cuts.evaluate_under(partition, (WITHIN_LIMIT,)))
                yield

    def _near(self, best: Family) -> Iterator[Family]:
        """Yield the families that differ from one in stages a rank, or in the size of micro-batches alone."""
        families, config = self.state.setting.families, best.config
        degrees = StageConfig(config.data, config.tensor, config.sequence, config.context, config.expert)
        looped = (replace(best, chunks=number) for number in families.numbers_of_chunks(degrees))
        sizes = self.state.problem.microbatch_sizes_of(config.data)
        for family in (*looped, *(replace(best, microbatch_size=size) for size in sizes)):
            if family != best and families.holds(family):
                yield family

    def _open_cuts(self) -> Iterator[tuple[int, Family, Partition]]:
        """Yield the balanced cuts of the best plan's new neighbours, each with a bound on its step."""
        state = self.state
        best = state.setting.family_of.get(state.incumbent.best.candidate)
        for family in self._near(best) if best and best.split else ():
            if family in self._seen:
                continue
            self._seen.add(family)
            state.bounds.know(family)
            if not (state.prospects.is_open(family) and state.prospects.is_small(family)):
                continue
            cuts = state.setting.cuts(family)
            for partition in dict.fromkeys(balanced_partitions(state.setting, cuts, cuts.num_places)):
                candidate = cuts.candidate(partition, WITHIN_LIMIT, line=cuts.always_line)
                least_ns = state.setting.dropped.bound(partial(cuts.evaluator.least_ns, candidate))
                if least_ns is not None:
                    yield least_ns, family, partition


def _lines_and_all(state: SearchState) -> Iterator[CandidatePool]:
    """Yield the lines that were found, and all plans, where there are any and pins are kept apart."""
    incumbent = state.incumbent
    lines = CandidatePool(incumbent.problem, incumbent.aim, incumbent.layer_alignment)
    lines.offer(each for each in incumbent.found.values() if each.candidate.line)
    for found in (lines, incumbent):
        if found.found and not found.best.num_apart_violations:
            yield found
