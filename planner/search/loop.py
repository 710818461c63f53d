"""Our planner: one loop over a table of subsolvers (`planner.search.subsolver`), and what its search comes to.

Families (`planner.search.space.family`) come in order of a bound that needs no search; one whose bound is no better
than the best plan of its rung is passed over, so that uniform choices are searched completely. The bound ranges over
all families: it is the least of theirs. Ctrl-C, SIGTERM, a lost solver or a deadline end the search with what it has.
Leaves out whose turn it is (`planner.search.turns`).
"""

from dataclasses import replace
from math import inf

from costmodel.stages.strategies.amounts import NEVER
from planner.interrupts import check, raised
from planner.plan.limited_by import LimitedBy
from planner.question.problem import Problem, Report
from planner.search.bounders.proof import check_size
from planner.search.budget import Deadline
from planner.search.proposers.annealing import BriefAnnealing, BriefSplitAnnealing, RoundsOfAnnealing
from planner.search.proposers.balanced_sweep import FirstLook
from planner.search.proposers.chain import Lines
from planner.search.proposers.cpsat import CpSatProposer
from planner.search.proposers.enumeration import EveryCut
from planner.search.proposers.in_flight import MicrobatchesInFlight
from planner.search.proposers.known_shapes import KnownShapes
from planner.search.proposers.lowest_memory import LowestMemory
from planner.search.proposers.memory_cuts import CutsWithinMemory
from planner.search.proposers.options_by_stage import OptionsByStage
from planner.search.proposers.provers import Bounds, ExactProof
from planner.search.proposers.replicas_by_stage import ReplicasByStage
from planner.search.proposers.sibling_families import OtherOptions
from planner.search.proposers.split_backward import SplitBackward, SplitLocalSearch, SplitSiblings
from planner.search.proposers.warm_start import WarmStart
from planner.search.state.result import NO_BOUND, SearchBound, SearchOutcome
from planner.search.subsolver import SearchState, Subsolver
from planner.search.turns import PRIORS, Scheduler, TurnRecord

OVER_DEVICES = "work / devices"
"""The scope of the bound that always stands."""
MOST_WAIT_S = 0.2
"""Most seconds between two looks at what another process has proved, where nothing else is left to do."""

FIRST = (WarmStart, KnownShapes)
"""Subsolvers that are done before anything else."""
PORTFOLIO = (
    FirstLook, LowestMemory, CutsWithinMemory, SplitBackward, SplitSiblings, SplitLocalSearch, EveryCut, BriefAnnealing,
    BriefSplitAnnealing, OtherOptions, RoundsOfAnnealing, Lines, ReplicasByStage, OptionsByStage, CpSatProposer,
    MicrobatchesInFlight, Bounds, ExactProof,
)  # fmt: skip
"""Subsolvers that take turns after the first plans; of equal rates the first comes first."""


class PortfolioSearch:
    """One search, with all that it has found so far.

    Parameters
    ----------
    problem : Problem
    report : Report or None
    table : tuple of types of Subsolver
        Those that take turns after the first plans.
    most_s : float
        Seconds of all their turns.
    """

    def __init__(
        self,
        problem: Problem,
        report: Report | None,
        table: tuple[type[Subsolver], ...] = PORTFOLIO,
        most_s: float = inf,
    ) -> None:
        self.state = state = SearchState(problem, report)
        self._table, self._most_s = table, most_s
        self.turns: list[TurnRecord] = []
        state.record.watch("cut model", "improve", lambda: state.solver.pid)
        state.record.watch("lattice", "prove", lambda: state.bounder.pid)
        self.limited_by = LimitedBy.WORK_LIMIT if state.counted else LimitedBy.EXHAUSTED

    def run(self) -> SearchOutcome:
        """Search until the limits, or until interrupted, and choose."""
        state = self.state
        try:
            with raised(state.has_plan), state.solver, state.bounder, state.kernels:
                self._run()
            self.limited_by = self._why_it_ended()
        except KeyboardInterrupt:
            if not state.pool.found:
                raise
            self.limited_by = LimitedBy.INTERRUPTED
        except Exception as error:
            if not state.pool.found:
                raise
            state.prepared.dropped.blame(error)
        return self._outcome()

    def _run(self) -> None:
        state, limits = self.state, self.state.limits
        if state.problem.exact:
            check_size(state.prepared)
        pinned = bool(state.prepared.pinned_partition)
        if not (pinned or limits.expired) and state.problem.num_devices > 1 and state.kernels.start():
            state.pool.announce("compiling kernels while searching, once on this machine")
        self._give_turns(FIRST, Deadline(inf))  # which take what they need for a first plan, and no more
        state.writing.first_s = state.limits.taken_s
        if state.pool.found:
            state.writing.reserve(state.pool.best)
            with state.record.active("bounds", "prove"):  # what every answer says is worked out within the limit
                _ = state.prepared.families.number, state.prepared.free_bounds.work_over_devices_ns
        self._give_turns(self._table, limits)
        if state.pool.found and not state.problem.exact:
            with state.record.active("bounds", "prove"):
                state.bounding.finish(limits)

    def _give_turns(self, table: tuple[type[Subsolver], ...], until: Deadline) -> None:
        """Give turns to these until a time, and while another process may still prove or find something."""
        rows = [(solver, PRIORS[solver.name]) for solver in table]
        state, turns = self.state, Scheduler(self.state, rows, self._between, self._most_s)
        self.turns += turns.rows
        try:
            turns.run(until)
            while table is self._table and state.bounder.busy and not until.expired and not state.counted:
                state.bounding.hear(state.limits, min(MOST_WAIT_S, until.remaining_s))
                self._between()
                turns.run(until)
        finally:
            turns.close()

    def _between(self) -> None:
        """Take what was proved meanwhile; end if that was asked for."""
        state = self.state
        check(state.has_plan)
        if not state.problem.exact and state.pool.found:
            with state.record.active("bounds", "prove"):
                state.bounding.hear(state.limits)

    def _why_it_ended(self) -> LimitedBy:
        state = self.state
        if state.pool.found and state.bounds.proved:
            return LimitedBy.PROVED
        if state.closed:
            return LimitedBy.EXHAUSTED
        if state.limits.expired or state.left_out or not state.bounds.seen_all:
            return LimitedBy.TIME_LIMIT
        return LimitedBy.SOLVER_LOST if state.solver_lost else self.limited_by

    def _count_families(self) -> None:
        """Count the families that were priced, or whose bound is no better than the best plan that the target runs."""
        best_ns = self.state.pool.best.step_time_ns if self.state.has_plan() else NEVER
        self.state.record.families = self.state.prepared.families.number
        excluded = {
            family for family, bound_ns in self.state.bounds.of.items() if bound_ns >= best_ns and not family.split
        }
        self.state.record.families_seen = len(self.state.looked | excluded) + self.state.bounds.num_unseen_above(
            best_ns
        )

    def _outcome(self) -> SearchOutcome:
        pool = self.state.pool
        self._count_families()
        rivals = {}
        lines = [e.step_time_ns for e in pool.found.values() if e.fits and e.candidate.line and pool.runs(e)]
        single = [e.step_time_ns for e in pool.found.values() if e.fits and e.strategy == "single"]
        if lines:
            rivals["chain"] = min(lines)
        if single:
            rivals["single"] = min(single)
        if self.state.prepared.pinned_partition:
            self.state.bounds.take_orders_of_pinned()
        own = self.state.prepared.family_of.get(pool.best.candidate) if pool.found else None
        estimate = self.state.bounding.estimates.get(replace(own, split=False)) if own else None
        impossible = self.state.bounds.nothing_fits
        return SearchOutcome(
            self.state.prepared,
            pool,
            self._bound(),
            rivals,
            self.limited_by,
            impossible,
            estimate,
            self.state.old_plan,
            self.state.bounds.num_seen,
        )

    def _bound(self) -> SearchBound:
        """Return what is proved; bounds of families range over no old plan, or best one, that is in none of them."""
        bounds, old_plan = self.state.bounds, self.state.old_plan
        in_space = old_plan is None or old_plan.in_space
        found = bounds.pool.found
        if not (bounds.seen_all and in_space and (not found or bounds.range_over(bounds.pool.best.candidate))):
            bound = SearchBound(self.state.prepared.free_bounds.work_over_devices_ns, scope=OVER_DEVICES)
        else:
            bound = SearchBound(bounds.least_ns, bounds.looped_ns, bounds.split_backward_ns)
        return bound if bound.ns else NO_BOUND
