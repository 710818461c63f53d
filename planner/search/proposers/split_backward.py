"""Where a search runs split backwards: of its best plans and lines, and in families cut for that.

Leaves out which plans are halved (`planner.search.proposers.split_orders`), and when the search does it.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter

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
    """Whether backwards may be split in the orders that the search makes for them."""
    return allows_split_backward(state.problem) and not state.prepared.pinned.in_flight


class SplitBackward(Subsolver):
    """Backwards of the best plans, and of the best lines, split."""

    name = "split backwards"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether backwards may be split."""
        return may_split(state)

    def steps(self) -> Generator[None]:
        """Split one plan after the other."""
        state = self.state
        for found in _lines_and_all(state):
            with state.prepared.dropped.candidate():
                for family, each in split_plans(state.prepared, found, state.pace, state.limits, self.done):
                    if family:
                        state.bounds.know(family)
                    found.offer([each])
                    state.pool.offer([each])
                    yield


class SplitLocalSearch(Subsolver):
    """The best plan, and the best line, where its backwards are split: atoms moved across cuts."""

    name = "local search of split backwards"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether backwards may be split, and there are cuts to move; those of lines stay lines."""
        return may_split(state) and not state.prepared.pinned_partition

    def steps(self) -> Generator[None]:
        """Move atoms of the best plan, until no move that there is time for shortens its step."""
        for found in _lines_and_all(self.state):
            while self._improves(found):
                yield

    def _improves(self, found: CandidatePool) -> bool:
        """Move atoms of the best plan where its backwards are split; return whether there was anything to do."""
        state, best = self.state, found.best
        own = state.prepared.family_of.get(best.candidate)
        allowed = state.pace.allows(FEWEST * best.num_actions, state.limits)
        # from the same plan the same moves lead to the same one
        if not (own and own.split and allowed) or best.candidate in self.done:
            return False
        cuts, number = state.prepared.cuts(own), WORK // max(1, best.num_actions)
        with state.prepared.dropped.candidate():
            better = improve(cuts, best, min(NUM_EVALUATIONS, number), self.slice)
            under_all(cuts, better, state.pool)
        if not self.slice.expired:  # else it goes on in the next turn: what was simulated is known
            self.done |= {best.candidate, better.candidate}
        return True


class SplitSiblings(Subsolver):
    """Where the best plan has split backwards: balanced cuts of families like its own, which whole may be too slow."""

    name = "split siblings"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether backwards may be split, and cuts are open."""
        return super().supports(state) and may_split(state) and not state.prepared.pinned_partition

    def steps(self) -> Generator[None]:
        """Make the orders of one cut after the other, the one with the least bound on its step first."""
        state = self.state
        for least_ns, family, partition in sorted(self._open_cuts(), key=itemgetter(0)):
            cuts = state.prepared.cuts(family)
            allowed = state.pace.allows(cuts.about_actions(cuts.num_places), state.limits)
            if allowed and least_ns < state.pool.best.step_time_ns:
                state.pool.offer(cuts.evaluate_under(partition, (WITHIN_LIMIT,)))
                yield

    def _near(self, best: Family) -> Iterator[Family]:
        """Yield the families that differ from one in stages a rank, or in the size of micro-batches alone."""
        families, config = self.state.prepared.families, best.config
        looped = (replace(best, chunks=number) for number in families.numbers_of_chunks(config))
        sizes = self.state.problem.microbatch_sizes_of(config.data)
        for family in (*looped, *(replace(best, microbatch_size=size) for size in sizes)):
            if family != best and families.holds(family):
                yield family

    def _open_cuts(self) -> Iterator[tuple[int, Family, Partition]]:
        """Yield the balanced cuts of the best plan's new neighbours, each with a bound on its step."""
        state = self.state
        best = state.prepared.family_of.get(state.pool.best.candidate)
        for family in self._near(best) if best and best.split else ():
            if family in self.done:
                continue
            self.done.add(family)
            state.bounds.know(family)
            if not (state.prospects.is_open(family) and state.prospects.is_small(family)):
                continue
            cuts = state.prepared.cuts(family)
            for partition in dict.fromkeys(balanced_partitions(state.prepared, cuts, cuts.num_places)):
                candidate = cuts.candidate(partition, WITHIN_LIMIT, line=cuts.always_line)
                least_ns = state.prepared.dropped.bound(partial(cuts.evaluator.least_ns, candidate))
                if least_ns is not None:
                    yield least_ns, family, partition


def _lines_and_all(state: SearchState) -> Iterator[CandidatePool]:
    """Yield the lines that were found, and all plans, where there are any and pins are kept apart."""
    pool = state.pool
    lines = CandidatePool(pool.problem, pool.aim, pool.layer_alignment)
    lines.offer(each for each in pool.found.values() if each.candidate.line)
    for found in (lines, pool):
        if found.found and not found.best.num_apart_violations:
            yield found
