"""CP-SAT on the families that it knows: which of them, how long, and what its findings are taken for.

Leaves out the model and its process (`planner.search.solvers.cpsat`), and proofs by simulation
(`planner.search.bounders.proof`).
"""

from collections.abc import Generator, Sequence

from costmodel.stages.strategies.amounts import NEVER
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition
from planner.question.problem import AUTO
from planner.search.proposers.order_segments import polish
from planner.search.solvers.cpsat.child import CutRequest
from planner.search.solvers.relaxation.build import cut_data
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.subsolver import Subsolver

UNLIMITED = 1e9
"""Deterministic seconds where the clock ends a solve."""


class CpSatProposer(Subsolver):
    """CP-SAT on each family that could still hold a better plan, the best one first, in equal parts of the work."""

    name = "cut model"
    _done = False

    def steps(self) -> Generator[None]:
        """Let the solver cut one family after the other."""
        solvable = [] if self._done else self.solvable(self.state.prospects.top())
        if not solvable:
            return
        self._done = True
        prospects = self.state.prospects
        open_ones = [f for f in prospects.best_by_family() if f in solvable and prospects.is_open(f)]
        limit = self.state.problem.effort.deterministic_limit
        for family in open_ones:
            if prospects.is_open(family):
                with self.state.prepared.dropped.candidate():
                    self._solve(family, UNLIMITED if limit is None else limit / len(open_ones))
                yield

    def solvable(self, families: Sequence[Family]) -> list[Family]:
        """Return those that the cut model knows and the effort lets it cut."""
        problem, prepared = self.state.problem, self.state.prepared
        if problem.effort.deterministic_limit == 0:
            return []
        fixed = problem.space.stages
        exact = [family for family in families if prepared.free_bounds.is_cut_exactly(family)]
        return [family for family in exact if fixed in (None, prepared.cuts(family).num_places)]

    def _solve(self, family: Family, work: float) -> None:
        """Let CP-SAT cut one family; `work` is in its deterministic seconds."""
        state, bounds = self.state, self.state.bounds
        cuts, request = state.prepared.cuts(family), self._request(family, work)
        tried: list[Evaluated] = []
        ended = False
        for finding in state.solver.findings(request, state.limits):
            if finding["kind"] == "bound":
                bounds.rise(family, finding["units"] * request.data.unit_ns)
                bounds.settle(state.limits)
            elif finding["kind"] == "partition":
                tried += self._simulated(cuts, tuple(finding["partition"]))
                state.pool.offer(tried)
                state.pool.say("solver")
            else:
                ended = True
                if finding["status"] == "INFEASIBLE":
                    bounds.impossible.add(family)
                    if not request.data.limit:  # pins alone, whatever the order
                        bounds.rise(family, NEVER)
        state.solver_lost |= not ended and not state.limits.hit
        if tried and min(tried, key=lambda each: each.sort_key).sort_key <= state.pool.best.sort_key:
            polish(cuts, tried, state.pool, state.limits)

    def _simulated(self, cuts: FamilyPartitions, partition: Partition) -> list[Evaluated]:
        fits = cuts.fixed_stages in (None, max(partition) + 1)
        return cuts.evaluate_under(partition, cuts.schedules) if fits else []

    def _request(self, family: Family, work: float) -> CutRequest:
        """Return what the solver is asked for."""
        problem, prepared = self.state.problem, self.state.prepared
        cuts, effort = prepared.cuts(family), problem.effort
        binding = cuts.memory_can_bind and all(problem.memory_limits_bytes)
        data = cut_data(cuts, self.state.bounds.of[family], binding)
        known = self.state.prospects.best_by_family().get(family)
        return CutRequest(
            data,
            known.candidate.partition if known else (),
            seconds=self.slice.remaining_s,
            deterministic=work,
            estimates=problem.schedule != AUTO or data.limit > 0,
            seed=effort.seed,
        )
