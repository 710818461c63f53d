"""Cuts into stages in one line, as the chain planner makes them, and what their partitions are as graphs.

Lines are held against the best line, not against graphs: they are the rival that a plan is compared with. Leaves out
which families are cut so.
"""

from collections.abc import Generator

from planner.search.budget import Deadline
from planner.search.proposers.annealing_run import AnnealingRun, can_anneal
from planner.search.proposers.order_segments import NUM_RANDOM_ORDERS, cut, polish
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.focus import NUM_CAREFUL, is_near
from planner.search.state.pool import CandidatePool
from planner.search.subsolver import SearchState, Subsolver

NUM_RESTARTS = 2
"""Times that a family is annealed as a line."""
NUM_AS_GRAPHS = 4
"""Lines of a family whose partitions are tried as graphs."""


class Lines(Subsolver):
    """Lines of the families whose first look came near the best."""

    name = "lines"

    def __init__(self, state: SearchState) -> None:
        super().__init__(state)
        self._found = CandidatePool(state.problem, state.aim, state.pool.layer_alignment)

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """For every planner: it is the chain planner's own."""
        return not state.prepared.pinned_partition

    def steps(self) -> Generator[None]:
        """Cut one family after the other into stages in one line; the best lines may be better as graphs."""
        prospects = self.state.prospects
        whole = [f for f in prospects.best_by_family() if f.chunks == 1 and not f.split and prospects.is_small(f)]
        for family in whole[:NUM_CAREFUL]:
            if family in self.done or (self._found.found and not prospects.is_open(family, self._found)):
                continue
            self.done.add(family)
            cuts = self.state.prepared.cuts(family)
            with cuts.dropped.candidate():
                self._cut(cuts, self.state.limits)
            yield

    def _cut(self, cuts: FamilyPartitions, limits: Deadline) -> None:
        lines, pool, problem = self._found, self.state.pool, self.state.problem
        found = cut(cuts, 0, lines, limits, line=True)
        if can_anneal(cuts) and self.state.kernels.ready(0.0):
            for seed in range(problem.effort.seed, problem.effort.seed + NUM_RESTARTS):
                restart = None if limits.expired else AnnealingRun.of(cuts, None, seed, line=True)
                if restart:
                    restart.run()
                    found += restart.offer_to(lines, limits)
        if found and is_near(min(found, key=lambda each: each.sort_key), lines):
            found += cut(cuts, NUM_RANDOM_ORDERS, lines, limits, line=True)
            polish(cuts, found, lines, limits)
        pool.offer(lines.found.values())
        if problem.planner != "chain" and not cuts.always_line:
            for each in sorted(found, key=lambda each: each.sort_key)[:NUM_AS_GRAPHS]:
                pool.offer(cuts.evaluate_under(each.candidate.partition, cuts.schedules))
