"""CP-SAT on the families that it knows: turns, shares of the work, and what its findings are taken for.

Leaves out the model and its process (`planner.search.solvers.cpsat`), and proofs by simulation
(`planner.search.bounders.proof`).
"""

from collections.abc import Sequence

from costmodel.stages.strategies.model import NEVER
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition
from planner.question.problem import AUTO
from planner.search.bounders.family_bounds import FamilyBounds
from planner.search.budget import Deadline
from planner.search.proposers.order_segments import polish
from planner.search.solvers.cpsat.child import CutRequest, Solver
from planner.search.solvers.relaxation.build import cut_data
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.focus import FamilySelector
from planner.search.state.record import SearchRecord, recorded

ESTIMATE_PART = 0.3
"""Part of the solver's limits for the estimate, where a schedule or the memory keeps few micro-batches in flight."""
DETERMINISTIC_PER_S = 0.3
"""Deterministic seconds of the solver for each second of the time limit, when none are given."""
SOLVER_PART = 0.45
"""Most of the time left that the solver may take; the rest is for improving what it found."""
NUM_TURNS, TURN_PART = 5, 0.08
"""Families that the solver looks at in turn first, and the part of its work that each gets for that."""


class CpSatProposer:
    """One use of the solver, after local search.

    Parameters
    ----------
    solver : Solver
    bounds : FamilyBounds
        Raised by what is proved.
    prospects : FamilySelector
    settling : Deadline
        After which bounds that need no search are no longer worked out.
    """

    def __init__(self, solver: Solver, bounds: FamilyBounds, prospects: FamilySelector, settling: Deadline) -> None:
        self.solver, self.bounds, self.prospects, self.settling = solver, bounds, prospects, settling
        self.setting, self.incumbent, self.problem = bounds.setting, bounds.incumbent, bounds.setting.problem
        self._lost = False

    def solve(self, families: Sequence[Family], limits: Deadline) -> bool:
        """Let CP-SAT cut each family that could still hold a better plan, the best one first.

        Where there are several, each gets a first turn; then the best one gets half of the work that is left, the
        others equal parts of the rest. Returns whether the solver's process was lost.
        """
        solvable = self.solvable(families)
        solving = Deadline(limits.remaining_s * SOLVER_PART)
        open_ones = [f for f in self.prospects.best_by_family() if f in solvable and self.prospects.is_open(f)]
        turns = open_ones[:NUM_TURNS] if len(open_ones) > 1 else []
        for family in turns:
            with self.setting.dropped.candidate():
                self._solve_family(family, TURN_PART, solving, limits)
        again = [family for family in self.prospects.best_by_family() if family in open_ones]
        left = 1 - TURN_PART * len(turns)
        for number, family in enumerate(again):
            share = left if len(again) == 1 else left / 2 if number == 0 else left / 2 / (len(again) - 1)
            with self.setting.dropped.candidate():
                self._solve_family(family, share, solving, limits)
        return self._lost

    def solvable(self, families: Sequence[Family]) -> list[Family]:
        """Return those that the cut model knows and the effort lets it cut."""
        if self.problem.effort.deterministic_limit == 0:
            return []
        fixed = self.problem.space.stages
        exact = [family for family in families if self.setting.is_cut_exactly(family)]
        return [family for family in exact if fixed in (None, self.setting.cuts(family).num_places)]

    @property
    def record(self) -> SearchRecord:
        """The record of the search."""
        return self.incumbent.record

    @recorded("cut model", "improve")
    def _solve_family(self, family: Family, share: float, solving: Deadline, limits: Deadline) -> None:
        """Let CP-SAT cut one family with a share of the work."""
        if solving.expired or not self.prospects.is_open(family):
            return
        cuts = self.setting.cuts(family)
        request = self._request(family, share, solving)
        tried: list[Evaluated] = []
        ended = False
        for finding in self.solver.findings(request, limits):
            if finding["kind"] == "bound":
                bound_ns = finding["units"] * request.data.unit_ns
                self.bounds.rise(family, bound_ns)
                self.bounds.settle(self.settling)
            elif finding["kind"] == "partition":
                tried += self._simulated(cuts, tuple(finding["partition"]))
                self.incumbent.offer(tried)
                self.incumbent.say("solver")
            else:
                ended = True
                if finding["status"] == "INFEASIBLE":
                    self.bounds.impossible.add(family)
                    if not request.data.limit:  # pins alone, whatever the order
                        self.bounds.rise(family, NEVER)
        self._lost |= not ended and not limits.hit
        if tried and min(tried, key=lambda each: each.sort_key).sort_key <= self.incumbent.best.sort_key:
            polish(cuts, tried, self.incumbent, limits)

    def _simulated(self, cuts: FamilyPartitions, partition: Partition) -> list[Evaluated]:
        fits = cuts.fixed_stages in (None, max(partition) + 1)
        return cuts.evaluate_under(partition, cuts.schedules) if fits else []

    def _request(self, family: Family, share: float, solving: Deadline) -> CutRequest:
        """Return what the solver is asked for."""
        cuts, effort = self.setting.cuts(family), self.problem.effort
        binding = cuts.memory_can_bind and all(self.problem.memory_limits_bytes)
        data = cut_data(cuts, self.bounds.of[family], binding)
        known = self.prospects.best_by_family().get(family)
        work = effort.deterministic_limit
        if work is None:
            work = effort.time_limit_s * DETERMINISTIC_PER_S
        few = self.problem.schedule != AUTO or data.limit > 0
        return CutRequest(
            data,
            known.candidate.partition if known else (),
            seconds=solving.remaining_s,
            deterministic=work * share,
            estimate_part=ESTIMATE_PART if few else 0.0,
            seed=effort.seed,
        )
