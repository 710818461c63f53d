"""Cuts into stages in one line, as the chain planner makes them, and what their partitions are as graphs.

Lines are held against the best line, not against graphs: they are the rival that a plan is compared with. Leaves out
which families are cut so.
"""

from planner.search.budget import Deadline
from planner.search.proposers.annealing_run import AnnealingRun, can_anneal
from planner.search.proposers.order_segments import NUM_RANDOM_ORDERS, cut, polish
from planner.search.solvers.annealing.readiness import Kernels
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.focus import FamilySelector, is_near
from planner.search.state.pool import CandidatePool

NUM_RESTARTS = 2
"""Times that a family is annealed as a line."""
NUM_AS_GRAPHS = 4
"""Lines of a family whose partitions are tried as graphs."""


class Lines:
    """The lines of one search.

    Parameters
    ----------
    incumbent : CandidatePool
        Of the search, which takes lines too.
    prospects : FamilySelector
    kernels : Kernels
    """

    def __init__(self, incumbent: CandidatePool, prospects: FamilySelector, kernels: Kernels) -> None:
        self._incumbent, self._prospects, self._kernels = incumbent, prospects, kernels
        self._found = CandidatePool(incumbent.problem, incumbent.aim, incumbent.layer_alignment)

    def cut(self, cuts: FamilyPartitions, limits: Deadline) -> None:
        """Cut a family into stages in one line; the best lines may be better as graphs."""
        lines, incumbent = self._found, self._incumbent
        known = lines if lines.found else incumbent
        if limits.expired or not self._prospects.is_open(cuts.family, known) or cuts.family.chunks > 1:
            return
        with cuts.dropped.candidate():
            self._cut(cuts, limits)

    def _cut(self, cuts: FamilyPartitions, limits: Deadline) -> None:
        lines, incumbent, problem = self._found, self._incumbent, self._incumbent.problem
        found = cut(cuts, 0, lines, limits, line=True)
        if can_anneal(cuts) and self._kernels.ready(0.0):
            for seed in range(problem.effort.seed, problem.effort.seed + NUM_RESTARTS):
                restart = None if limits.expired else AnnealingRun.of(cuts, None, seed, line=True)
                if restart:
                    restart.run()
                    found += restart.offer_to(lines, limits)
        if found and is_near(min(found, key=lambda each: each.sort_key), lines):
            found += cut(cuts, NUM_RANDOM_ORDERS, lines, limits, line=True)
            polish(cuts, found, lines, limits)
        incumbent.offer(lines.found.values())
        incumbent.say("line")
        if problem.planner != "chain" and not cuts.always_line:
            for each in sorted(found, key=lambda each: each.sort_key)[:NUM_AS_GRAPHS]:
                incumbent.offer(cuts.evaluate_under(each.candidate.partition, cuts.schedules))
            incumbent.say("line as a graph")
