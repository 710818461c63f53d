"""Our planner: every family is looked at, the promising ones are cut with care, CP-SAT improves and proves.

Families (`planner.search.space.family`) come in order of a bound that needs no search; one whose bound is no better
than the best plan of its rung is passed over, so that uniform choices are searched completely. The promising ones are
cut as a line and as a graph; replicas that differ by stage are tried on the best cuts. The bound ranges over all
families: it is the least of theirs. Ctrl-C, SIGTERM, a lost solver or a deadline end the search with what it has.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from itertools import chain
from math import inf
from typing import Concatenate, ParamSpec

from costmodel.stages.strategies.model import NEVER
from planner.candidate.order import WITHIN_LIMIT
from planner.plan.limited_by import LimitedBy
from planner.question.problem import Problem, Report
from planner.question.targets import default_target
from planner.search.bounders.family_bounds import FamilyBounds
from planner.search.bounders.lattice import LatticeBounder
from planner.search.bounders.proof import Exact, check_size
from planner.search.budget import Deadline, OrderPace, WriteReserve, clock_s, patience
from planner.search.interrupts import heed, raised
from planner.search.proposers.annealing import AnnealingScheduler
from planner.search.proposers.annealing_run import can_anneal
from planner.search.proposers.balanced_sweep import BalancedSweep
from planner.search.proposers.chain import Lines
from planner.search.proposers.cpsat import CpSatProposer
from planner.search.proposers.enumeration import enumerate_cuts
from planner.search.proposers.in_flight import tuned
from planner.search.proposers.known_shapes import FirstPlans
from planner.search.proposers.lowest_memory import leanest
from planner.search.proposers.order_segments import NUM_RANDOM_ORDERS, cut, perturb_best, polish
from planner.search.proposers.replicas_by_stage import varied
from planner.search.proposers.sibling_families import transfer_to_siblings
from planner.search.proposers.split_backward import SplitBackward
from planner.search.proposers.starts import proposed
from planner.search.proposers.warm_start import warm_start
from planner.search.solvers.annealing.readiness import Kernels
from planner.search.solvers.cpsat.child import Solver
from planner.search.space.family import Family
from planner.search.space.open_choices import allows_custom_in_flight, allows_per_stage_replicas
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.focus import NUM_CAREFUL, PROMISING, FamilySelector, is_near
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.state.record import HOLDS_LEAST, SearchRecord, recorded
from planner.search.state.result import SearchOutcome, WarmStart

NUM_SHAKES_BEFORE, NUM_SHAKES_AFTER = 6, 12
"""Random changes of the best plan that are improved again, before and after the solver."""
OVER_DEVICES = "work / devices"
"""The scope of the bound that always stands."""
NEAR_ESTIMATE = 0.95
"""A family whose estimate is more than this part of the best step is looked at after the best are cut with care."""
FEW_FAMILIES = 500
"""Families up to which all are looked at first: a bound ranges over them, and little else is there to do. So many are
looked at in all where work is counted."""
LOOK_PART = 0.5
"""Most of the time that the first look at all families may take."""
UNSEEN_PART, SETTLE_PART = 0.85, 0.1
"""Most of the time left in the end, and after the first look, for bounds that need no search."""
PARTS = (0.2, 0.66, 0.7, 0.76, 0.84)
"""Most of the time left after the first look that may pass before families are annealed once, before the best are
annealed in rounds, before orders of others are cut, before those near the best are improved, and before the solver
starts."""
HALVES_PART, LAST_HALVES_PART = 0.3, 0.8
"""Most of the time left that split backwards may take, each time and in the end, when the rest is for bounds."""
WAIT_PART = 0.75
"""Most of the time left that the first search of a machine waits for the kernels to be compiled."""
NUM_ROUNDS, NUM_ROUNDS_AFTER = 8, 6
"""Rounds in which the best families are annealed, before others are cut and after the solver."""
START_PART = 0.08
"""Most of the time left after the first look that starts of another kind may take."""
LEAN_SECONDS, LEAN_PART, LEAST_LEAN_S = 4.0, 0.4, 0.5
"""For what holds least, where nothing that was looked at fits, the most of the search's time, and the least of all."""
LAST_PART = 0.7
"""Most of the time left in the end that the last rounds take before local search."""
OPTIONS_PART = 0.1
"""Most of the time left that the best cuts are tried under other options."""
FEW_PART = 0.2
"""Most of the time left that families of few cuts are cut in every way."""
NUM_TUNED = 3
"""Plans whose micro-batches in flight are changed in the end."""
BEFORE_PROOF = 0.4
"""Part of those times before a proof, which gets the rest."""
FEW_ATOMS = 12
"""Up to so many atoms a proof starts after the first look: it simulates what matters sooner than others find it."""


Given = ParamSpec("Given")
Step = Callable[Concatenate["PortfolioSearch", Given], None]


def _while_time(step: Step[Given]) -> Step[Given]:
    """Leave a step out once the search is over: nothing of it is begun that would only find that out."""

    @wraps(step)
    def taken(search: "PortfolioSearch", /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        if not search.limits.expired:
            step(search, *args, **kwargs)

    return taken


class PortfolioSearch:
    """One search, with all that it has found so far."""

    def __init__(self, problem: Problem, report: Report | None) -> None:
        self.record = SearchRecord()
        self.problem, self.setting = problem, PreparedProblem(problem)
        self.aim = problem.target or default_target(problem)[0]
        self.solver, self.kernels = Solver(), Kernels()
        self.limits = Deadline(clock_s(problem))
        self.brief = self.annealed = self.graphs = self.improved = self.early = self.last = self.limits
        self.writing = WriteReserve(problem, self.limits)
        self.incumbent = CandidatePool(
            problem, self.aim, self.setting.layer_alignment, report, writing=self.writing, record=self.record
        )
        self.bounds = FamilyBounds(self.setting, self.incumbent)
        self.bounder = Solver()
        pace = OrderPace()
        self.bounding = LatticeBounder(self.bounds, self.bounder, pace)
        self.split_backward = SplitBackward(self.bounds, pace)
        self.prospects = FamilySelector(self.setting, self.incumbent, self.bounds.of)
        self.lines = Lines(self.incumbent, self.prospects, self.kernels)
        self._saved = self._left_out = self._closed = False
        self._looked: set[Family] = set()
        self.rounds = AnnealingScheduler(self.setting, self.incumbent, self.prospects, self.kernels, self._hear)
        self.old_plan: WarmStart | None = None
        self.record.watch("cut model", "improve", lambda: self.solver.pid)
        self.record.watch("lattice", "prove", lambda: self.bounder.pid)
        counted = problem.effort.deterministic_limit is not None
        self.limited_by = LimitedBy.WORK_LIMIT if counted else LimitedBy.EXHAUSTED

    def run(self) -> SearchOutcome:
        """Search until the limits, or until interrupted, and choose."""
        try:
            with raised(self._has_plan), self.solver, self.bounder, self.kernels:
                self._run()
            if self.incumbent.found and self.bounds.proved:
                self.limited_by = LimitedBy.PROVED
            elif not self._closed and self._is_cut_short:
                self.limited_by = LimitedBy.TIME_LIMIT
        except KeyboardInterrupt:
            if not self.incumbent.found:
                raise
            self.limited_by = LimitedBy.INTERRUPTED
        except Exception as error:
            if not self.incumbent.found:
                raise
            self.setting.dropped.blame(error)
        return self._outcome()

    def _run(self) -> None:
        if self.problem.exact:
            check_size(self.setting)
        if (
            self._anneals
            and self.problem.num_devices > 1
            and not self.setting.pinned_partition
            and not self.limits.expired
            and self.kernels.start()
        ):
            self.incumbent.announce("compiling kernels beside the search, once on this machine")
        if self.problem.old_plan:
            with self.record.active("old plan", "first"):
                self.old_plan = warm_start(self.problem.old_plan, self.setting, self.incumbent, self.bounds)
            if self.incumbent.found:
                self.incumbent.say("old plan")
        looking = Deadline(clock_s(self.problem) * LOOK_PART, self.limits)
        screen = BalancedSweep(self.setting, self.incumbent, looking, self.writing)
        in_turn = self._in_turn()
        self._plan_first(FirstPlans(self.setting, self.incumbent, self.writing, self.limits))
        self._range()
        if self.incumbent.best_fits:
            self._split_backward(HALVES_PART)
        while not (looking.expired and (self.incumbent.best_fits or self._saved)):
            found = next(in_turn, None)
            if found is None:
                self.bounds.seen_all = True
                break
            family, estimate_ns = found
            if self._looks_later(estimate_ns):
                in_turn = chain(((family, estimate_ns),), in_turn)
                break
            if looking.expired and self.incumbent.found:
                self._save_memory()
            self._look(screen, family)
        screen.sweep_long()
        self._left_out = bool(screen.left_out)
        if not self.incumbent.found:
            return
        if not self.incumbent.best_fits:
            self._save_memory()
        self._hear()
        self.incumbent.say("first look")
        self._under_every_schedule()
        self.bounds.take_unseen(Deadline(self.limits.remaining_s * SETTLE_PART))
        self.bounds.settle(Deadline(self.limits.remaining_s * SETTLE_PART))
        if self.setting.pinned_partition:
            self._tune()
            self._split_backward(LAST_HALVES_PART)
            return
        if self._anneals:
            self._cut_in_every_way()
            self._cut_with_care()
        if self.problem.exact:
            self._prove()
        else:
            screen.limits = Deadline(
                self.limits.remaining_s * LOOK_PART
            )  # where little is cut with care there is time again
            while not screen.limits.expired and self._counts_more:
                found = next(in_turn, None)
                if found is None:
                    break
                self._look(screen, found[0])
            self._tune()
            self._split_backward(LAST_HALVES_PART)
            self.bounds.take_unseen(Deadline(self.limits.remaining_s * UNSEEN_PART))
            self.bounds.settle_split(Deadline(self.limits.remaining_s * SETTLE_PART))
            self.bounds.settle(
                Deadline(self.limits.remaining_s * UNSEEN_PART)
            )  # while others are raised in their process
            with self.record.active("bounds", "prove"):
                self.bounding.finish(self.limits)

    def _in_turn(self) -> Iterator[tuple[Family, float]]:
        """Yield all families with their estimates: those that are estimated to fit, the fastest first, then others."""
        table, seen = self.setting.table, set[Family]()
        if table:
            for row in table.by_estimate(self.setting.most_bytes):
                family = table.family(row)
                if family not in seen:
                    seen.add(family)
                    yield family, float(table.step_ns[row])
        yield from ((family, inf) for family in self.setting.families.every() if family not in seen)

    @property
    def _counts_more(self) -> bool:
        """Whether more families are looked at: where work is counted no clock ends that, but their number."""
        return self.problem.effort.deterministic_limit is None or len(self._looked) < FEW_FAMILIES

    def _looks_later(self, estimate_ns: float) -> bool:
        """Whether families from this estimate on come after the best are cut with care: where a plan is known.

        Few families are all looked at first.
        """
        if self.setting.table is None or not self.incumbent.best_fits:
            return False
        few = self.setting.families.number <= FEW_FAMILIES
        return not few and estimate_ns > NEAR_ESTIMATE * self.incumbent.best.step_time_ns

    def _plan_first(self, first: FirstPlans) -> None:
        """Take known shapes, then the best of the table."""
        for name, step in (("known shapes", first.first), ("family table", first.more)):
            with self.record.active(name, "first"):
                step()
            if self.incumbent.found:
                self.incumbent.say(name)
            heed(self._has_plan)
        for family in first.tried:
            self.bounds.know(family)
            self._looked.add(replace(family, split=False))

    @recorded("bounds", "prove")
    def _range(self) -> None:
        """Learn what every answer says, while there is time: how many families there are, and what bounds them all."""
        _ = self.setting.families.number, self.setting.work_over_devices_ns

    @recorded("first look", "first")
    def _look(self, screen: BalancedSweep, family: Family) -> None:
        self._looked.add(family)
        self.bounds.num_seen = len(self._looked)
        with self.setting.dropped.candidate():
            screen.sweep(family)
        heed(self._has_plan)
        bound_ns = self.setting.bound_ns(family)
        if bound_ns is not None:
            self.bounds.of[family] = max(bound_ns, self.bounds.of.get(family, 0))

    @property
    def _is_cut_short(self) -> bool:
        """Whether the clock ended any part of the search, or kept it from a family."""
        parts = (self.limits, self.last, self.early, self.improved, self.graphs, self.annealed, self.brief)
        return self._left_out or any(part.hit for part in parts) or not self.bounds.seen_all

    def _has_plan(self) -> bool:
        return self.incumbent.best_fits

    @recorded(HOLDS_LEAST, "first")
    def _save_memory(self) -> None:
        """Take what holds least, once, where nothing that was looked at fits."""
        if self._saved:
            return
        self._saved = True
        seconds = patience(self.problem) * min(LEAN_SECONDS, max(LEAST_LEAN_S, LEAN_PART * clock_s(self.problem)))
        for family, each in leanest(self.setting, seconds):
            self.bounds.know(family)
            self.incumbent.offer([each])

    @property
    def _anneals(self) -> bool:
        """Whether the promising families are cut with care."""
        return not self.problem.exact or len(self.setting.atoms) > FEW_ATOMS

    @_while_time
    @recorded("starts", "improve")
    def _start_elsewhere(self) -> None:
        """Take starts that know of memory and of replicas by stage."""
        self.incumbent.offer(proposed(self.setting, Deadline(self.limits.remaining_s * START_PART)))
        for family in self.prospects.best_by_family():
            self.bounds.know(family)
        self.incumbent.say("starts")

    @_while_time
    def _cut_with_care(self) -> None:
        self._hear()
        open_ones = self.prospects.not_pruned()
        self._wait_for_kernels(open_ones)
        self.brief, self.annealed, self.graphs, self.improved, self.early = (
            Deadline(self.limits.remaining_s * part * (BEFORE_PROOF if self.problem.exact else 1)) for part in PARTS
        )
        if self.problem.planner == "chain":
            self.early = self.limits
            self._cut_lines(self._promising())
        else:
            self._all_cuts(open_ones)

    def _promising(self) -> list[FamilyPartitions]:
        return [self.setting.cuts(family) for family in self.prospects.top()]

    def _all_cuts(self, open_ones: Sequence[Family]) -> None:
        seed = self.problem.effort.seed
        solving = CpSatProposer(self.solver, self.bounds, self.prospects, self.early)
        if self.problem.exact or solving.solvable(open_ones):
            self.solver.start()  # it imports while these are cut
        self.rounds.briefly(open_ones, self.brief)
        self._change_options()
        promising = self._promising()  # for lines, which halved graphs do not make less worth having
        self._split_backward(OPTIONS_PART)
        self.rounds.briefly(self.split_backward.families(open_ones), Deadline(self.limits.remaining_s * HALVES_PART))
        if allows_per_stage_replicas(self.setting.problem, self.setting.pinned, singly=True):
            self._start_elsewhere()
        self.rounds.run(NUM_ROUNDS, self.annealed)
        self._split_backward(HALVES_PART)
        careful = self._promising()
        self._cut_graphs(careful)
        self._change_options()
        self._shake(NUM_SHAKES_BEFORE, seed, self.improved)
        self._cut_lines(promising if self.split_backward.is_open else careful)
        if self.problem.exact:
            return
        self._vary()
        if solving.solve([cuts.family for cuts in careful], self.limits):
            self.limited_by = LimitedBy.SOLVER_LOST
        self._change_options()
        self._split_backward(HALVES_PART)
        self.last = Deadline(self.limits.remaining_s * LAST_PART)
        self.rounds.run(NUM_ROUNDS_AFTER, self.last)
        self._improve()
        self._split_backward(HALVES_PART)
        self._shake(NUM_SHAKES_AFTER, seed + 1, self.limits)

    @_while_time
    @recorded("local search", "improve")
    def _improve(self) -> None:
        """Improve the best of each family near the best on the simulator itself."""
        for family, best in self.prospects.near_best():
            known = not family.split and self.prospects.is_small(family)  # halves are improved where they are made
            if not self.limits.expired and known and is_near(best, self.incumbent):
                polish(self.setting.cuts(family), [best], self.incumbent, self.limits)
        self.incumbent.say("local search")

    @_while_time
    @recorded("other options", "improve")
    def _change_options(self) -> None:
        """Try what the best cuts are under other options, which may have been cut worse."""
        for each in transfer_to_siblings(self.bounds, self.prospects, Deadline(self.limits.remaining_s * OPTIONS_PART)):
            self.incumbent.offer(each)
        self.incumbent.say("other options")

    @recorded("proof", "prove")
    def _prove(self) -> None:
        """Let the cut model go through all that may be better than the best."""
        self.early = self.limits
        proof = Exact(self.bounds)
        if proof.prove(self.solver, self.limits):
            self.limited_by = LimitedBy.SOLVER_LOST
        elif proof.done:
            self.limited_by, self._closed = LimitedBy.EXHAUSTED, True  # but for families that the model does not know

    @_while_time
    @recorded("every cut", "improve")
    def _cut_in_every_way(self) -> None:
        """Simulate every cut of families that have few."""
        limits = Deadline(self.limits.remaining_s * FEW_PART)
        for each in enumerate_cuts(self.setting, self.bounds.of, self.prospects, limits):
            self.incumbent.offer(each)
        self.incumbent.say("every cut")

    @_while_time
    @recorded("other schedules", "improve")
    def _under_every_schedule(self) -> None:
        """Simulate the best cuts under the schedules that the first look left out."""
        best = self.incumbent.best
        for each in sorted(self.incumbent.found.values(), key=lambda each: each.sort_key)[:NUM_CAREFUL]:
            family = self.prospects.family_of(each)
            if family and each.step_time_ns <= best.step_time_ns * PROMISING and each.candidate.num_stages > 1:
                cuts = self.setting.cuts(family)
                for name in cuts.schedules:
                    if not self.limits.expired:
                        self.incumbent.offer(cuts.evaluate_under(each.candidate.partition, (name,)))

    @_while_time
    @recorded("lines", "improve")
    def _cut_lines(self, families: Sequence[FamilyPartitions]) -> None:
        for cuts in families:
            self.lines.cut(cuts, self.early)
            self._hear()

    @_while_time
    @recorded("graphs", "improve")
    def _cut_graphs(self, careful: Sequence[FamilyPartitions]) -> None:
        """Cut families into graphs of stages, and improve what comes near the best, the best first."""
        graphs = [cuts for cuts in careful if not cuts.always_line]
        for cuts in graphs:
            annealed = can_anneal(cuts) and self.kernels.ready(0.0)
            if not self.graphs.expired and not annealed and self.prospects.is_open(cuts.family):
                cut(cuts, 0, self.incumbent, self.graphs, line=False)
                self.incumbent.say("graph")
        for family, best in self.prospects.near_best():
            cuts, limits = self.setting.cuts(family), self.improved
            if cuts not in graphs or limits.expired or not is_near(best, self.incumbent):
                continue
            polish(cuts, [best], self.incumbent, limits)
            self.incumbent.say("local search")
            self._hear()
            if family.chunks == 1 and not can_anneal(cuts):  # with several a place most of what it finds is far off
                polish(cuts, cut(cuts, NUM_RANDOM_ORDERS, self.incumbent, limits, line=False), self.incumbent, limits)
                self.incumbent.say("other orders")

    def _wait_for_kernels(self, families: Sequence[Family]) -> None:
        """Wait until kernels are compiled: to the end where work is counted, that the same may be found everywhere."""
        if not self.limits.expired and any(can_anneal(self.setting.cuts(family)) for family in families):
            counted = self.problem.effort.deterministic_limit is not None
            self.kernels.ready(self.limits.remaining_s * (1.0 if counted else WAIT_PART))
            self.kernels.load()

    @_while_time
    @recorded("micro-batches in flight", "improve")
    def _tune(self) -> None:
        """Change the micro-batches in flight of the best plans."""
        if self.setting.pinned.in_flight or not allows_custom_in_flight(self.problem):
            return
        whole = (each for each in self.incumbent.found.values() if each.candidate.schedule != WITHIN_LIMIT)
        best = sorted(filter(self.incumbent.runs, whole), key=lambda each: each.sort_key)
        for each in best[:NUM_TUNED]:
            evaluator, family = self.setting.evaluator(each.candidate.microbatch_size), self.prospects.family_of(each)
            with self.setting.dropped.candidate():
                for found in tuned(evaluator, each, self.limits):
                    if family:
                        self.setting.family_of[found.candidate] = family
                    self.incumbent.offer([found])
        self.incumbent.say("micro-batches in flight")

    @_while_time
    @recorded("split backwards", "improve")
    def _split_backward(self, part: float) -> None:
        """Run backwards of the best plans in two halves, in a part of the time left."""
        self.split_backward.split_best(Deadline(self.limits.remaining_s * part), self.limits)
        self._hear()

    @_while_time
    @recorded("shaken and improved", "improve")
    def _shake(self, num_shakes: int, seed: int, limits: Deadline) -> None:
        best = self.incumbent.best
        family = self.prospects.family_of(best)
        if not family or self.bounds.proved or can_anneal(self.setting.cuts(family)):
            return
        if self.prospects.is_small(family):
            perturb_best(self.setting.cuts(family), best, self.incumbent, (num_shakes, seed), limits)
            self.incumbent.say("shaken and improved")

    @_while_time
    @recorded("replicas by stage", "improve")
    def _vary(self) -> None:
        """Try replicas that differ by stage on the best cuts."""
        if self.early.expired:
            return
        self.incumbent.offer(varied(self.setting, self.incumbent, self.early))
        self.incumbent.say("replicas by stage")

    @recorded("bounds", "prove")
    def _hear(self) -> bool:
        """Take what was proved meanwhile, return whether more is; end if that was asked for before anything fitted."""
        heed(self._has_plan)
        if not self.problem.exact:
            self.bounding.hear(self.limits)
        return self.bounder.busy

    def _count_families(self) -> None:
        """Count the families that were priced, or whose bound is no better than the best plan that the target runs."""
        best_ns = self.incumbent.best.step_time_ns if self._has_plan() else NEVER
        self.record.families = self.setting.families.number
        excluded = {family for family, bound_ns in self.bounds.of.items() if bound_ns >= best_ns and not family.split}
        self.record.families_seen = len(self._looked | excluded) + self.bounds.num_unseen_above(best_ns)

    def _outcome(self) -> SearchOutcome:
        incumbent = self.incumbent
        self._count_families()
        rivals = {}
        lines = [e.step_time_ns for e in incumbent.found.values() if e.fits and e.candidate.line and incumbent.runs(e)]
        single = [e.step_time_ns for e in incumbent.found.values() if e.fits and e.strategy == "single"]
        if lines:
            rivals["chain"] = min(lines)
        if single:
            rivals["single"] = min(single)
        if self.setting.pinned_partition:
            self.bounds.take_orders_of_pinned()
        # no bound of a space ranges over an old plan that is not in it
        seen_all = self.bounds.seen_all and (self.old_plan is None or self.old_plan.in_space)
        bound_ns = (self.bounds.least_ns if seen_all else self.setting.work_over_devices_ns) or None
        own = self.setting.family_of.get(incumbent.best.candidate) if incumbent.found else None
        estimate = self.bounding.estimates.get(replace(own, split=False)) if own else None
        impossible = self.bounds.nothing_fits
        looped_ns = self.bounds.looped_ns if bound_ns and seen_all else None
        split_backward_ns = self.bounds.split_backward_ns if bound_ns and seen_all else None
        beside = (
            self.limited_by,
            impossible,
            estimate,
            looped_ns,
            split_backward_ns,
            self.old_plan,
            self.bounds.num_seen,
        )
        scope = "" if seen_all or bound_ns is None else OVER_DEVICES
        return SearchOutcome(self.setting, incumbent, bound_ns, rivals, *beside, scope)
