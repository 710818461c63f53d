"""The best candidates so far, rung by rung, and the choice among them: the simplest rung wins.

Leaves out how candidates are found.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import EXECUTOR
from planner.candidate.candidate import Candidate, alike, is_looped
from planner.candidate.evaluate import Evaluated
from planner.candidate.order import WITHIN_LIMIT
from planner.graph.atoms import Partition
from planner.plan.rank_order import SEARCHED, RankOrder, rank_order_of
from planner.plan.rung import RUNGS
from planner.question.in_stage_support import rank_order_refusal
from planner.question.pipeline_support import schedule_refusal
from planner.question.problem import Problem, Report
from planner.question.targets import RUNNERS, config_not_run
from planner.search.budget import WriteReserve
from planner.search.state.record import SearchRecord

DIVIDES_LAYERS = 2
"""What `layer_alignment` says of a partition that divides layers, which trainers of lines do not."""
PLAIN = ("graph-1f1b", "1f1b", "graph-eager-1f1b", "eager-1f1b")
"""Fused schedules, fewest micro-batches in flight first; any other is no simpler than these."""


@dataclass
class CandidatePool:
    """Best candidate of each kind: strategy, stages, places, schedule, size, order of ranks, runner, room to spare.

    Attributes
    ----------
    problem : Problem
    aim : str
        The target that the answer is for.
    layer_alignment : function
        How a partition treats the model's layers (`PreparedProblem.layer_alignment`): people cut by hand where it is
        least.
    report : Report, optional
    lower_bound_ns : int
    writing : WriteReserve, optional
        Refuses what could no longer be written within the time limit, unless there is nothing else.
    version : int
        How often anything here changed.
    record : SearchRecord
        Told of each best plan that fits and that the target runs.
    fits_for_sure : function
        Whether a candidate does (`PreparedProblem.fits_for_sure`); by default whether it fits by the estimate.
    """

    problem: Problem
    aim: str
    layer_alignment: Callable[[Partition], int]
    report: Report | None = None
    lower_bound_ns: int = 0
    writing: WriteReserve | None = None
    record: SearchRecord = field(default_factory=SearchRecord)
    fits_for_sure: Callable[[Evaluated], bool] = attrgetter("fits")
    found: dict[tuple[object, ...], Evaluated] = field(default_factory=dict)
    version: int = 0
    _best_ns: dict[tuple[str, bool], int] = field(default_factory=dict)
    _said: object = None
    _late: bool = False

    def offer(self, candidates: Iterable[Evaluated]) -> None:
        """Take each candidate that is the best of its kind."""
        for each in candidates:
            if not self._can_be_written(each):
                continue
            known, runs = each.candidate, self.runs(each)
            recompute = {place.config.recompute for place in known.places} != {"none"}
            alike = (
                each.strategy, known.num_stages, known.schedule, known.line, known.microbatch_size, recompute, runs,
                self.layer_alignment(known.partition), known.num_devices == self.problem.num_devices,
                len(set(known.places)), _rank_order(known),
            )  # fmt: skip
            rivals = [self.found.get((*alike, room)) for room in (False, True)]
            if all(rival and each.sort_key >= rival.sort_key for rival in rivals):
                continue  # whether it fits for sure or not, which takes a simulation to learn
            kind = (*alike, self._has_room(each))
            if kind not in self.found or each.sort_key < self.found[kind].sort_key:
                self.found[kind] = each
                self.version += 1
                self.__dict__.pop("best", None)
                rung = (_in_line(each.strategy), runs)
                if each.fits and runs:
                    self.record.met(each.step_time_ns)
                if each.fits:
                    self._best_ns[rung] = min(each.step_time_ns, self._best_ns.get(rung, each.step_time_ns))
        if self.writing and self.found:
            self.writing.reserve(self.best)

    def _has_room(self, each: Evaluated) -> bool:
        """Whether a candidate fits for sure, or leaves so much that this is no question."""
        plenty = 2 * each.spare_bytes >= max(self.problem.memory_limits_bytes)
        return each.fits and (plenty or not self.problem.prefers_room or self.fits_for_sure(each))

    def _can_be_written(self, each: Evaluated) -> bool:
        """Whether to take a candidate; what was taken for want of another gives way to the first that is in time."""
        if not self.writing:
            return True
        if self.writing.fits(each.num_actions, each.copies):
            if self._late and each.fits:
                self.found.clear()
                self._best_ns.clear()
                self.__dict__.pop("best", None)
                self._late = False
                self.record.forget()
            return True
        if self.found and (self.best.fits or not each.fits):
            return False
        self._late = True
        return True

    def runs(self, each: Evaluated) -> bool:
        """Whether the target runs such a candidate."""
        pipelined = each.candidate.num_stages > 1
        return (self.aim != EXECUTOR or not each.not_divided) and all(
            self.runs_config(config, pipelined=pipelined) for config in {p.config for p in each.candidate.places}
        )

    def somebody_may_run(self, each: Evaluated) -> bool:
        """Whether some trainer takes a candidate, as far as is known without its plan, which takes long to make."""
        known, pipelined = each.candidate, each.candidate.num_stages > 1
        configs, looped = {place.config for place in known.places}, is_looped(known.places)
        in_line = each.is_line and (
            not pipelined or (alike(known.places) and self.layer_alignment(known.partition) < DIVIDES_LAYERS)
        )
        for name in RUNNERS:
            if any(config_not_run(name, self.problem, config, pipelined) for config in configs):
                continue
            if name == EXECUTOR and not each.not_divided:
                return True
            refused = schedule_refusal(name, known.schedule, pipelined=pipelined, looped=looped)
            refused = refused or rank_order_refusal(name, _rank_order(known), known.places[0].config)
            if name != EXECUTOR and in_line and not refused:
                return True
        return False

    def why_not_run(self, each: Evaluated) -> str:
        """Return why the target does not run a candidate; nothing where it does."""
        found = each.candidate
        configs, pipelined = {place.config for place in found.places}, found.num_stages > 1
        why = max(config_not_run(self.aim, self.problem, config, pipelined) for config in configs)
        return why or (each.not_divided if self.aim == EXECUTOR else "")

    def runs_config(self, config: StageConfig, *, pipelined: bool) -> bool:
        """Whether the target runs a stage configured so."""
        return not config_not_run(self.aim, self.problem, config, pipelined)

    @cached_property
    def best(self) -> Evaluated:
        """The best of all that the target runs; where there are none, of all."""
        own = [each for each in self.found.values() if self.runs(each)]
        return min(own or self.found.values(), key=lambda each: each.sort_key)

    @property
    def best_fits(self) -> bool:
        """Whether anything that the target runs was found to fit."""
        return bool(self.found) and self.best.fits

    def best_ns(self, strategy: str, *, runs: bool) -> int | None:
        """Return the best time on a rung, stages in a line or a graph alike, of what the target runs or does not."""
        return self._best_ns.get((_in_line(strategy), runs))

    def rungs(self) -> list[Evaluated]:
        """Return the plan of each rung, the fastest rung first; what the target runs and what it does not."""
        rows: dict[tuple[str, bool], list[Evaluated]] = {}
        for each in sorted(self.found.values(), key=lambda each: each.sort_key):
            if each.fits:
                rows.setdefault((each.strategy, self.runs(each)), []).append(each)
        return [self._simplest(row) for row in rows.values()]

    def _simplest(self, row: Sequence[Evaluated]) -> Evaluated:
        """Return the simplest that is about as fast as the first."""
        near = [each for each in row if each.step_time_ns <= row[0].step_time_ns * self.problem.near]
        return min(near, key=self.simplicity)

    def choices(self, old_ns: int | None = None, chain_ns: int | None = None) -> list[Evaluated]:
        """Return the candidates about as fast as the best and no slower than a rival, the simplest first, then others.

        None is slower than an old plan that can still be used, and no pipeline than the best chain of stages.

        Where a proof is asked for, those of the best time alone come first.

        Fewer mechanisms first, then simpler ones, equally many layers a stage, fewer stages, fewer micro-batches in
        flight, then time.
        """
        best = self.best
        if not best.fits:
            return [best]
        worst = best.step_time_ns * (1 if self.problem.exact else self.problem.near)
        if old_ns is not None:
            worst = max(best.step_time_ns, min(worst, old_ns))
        piped = worst if chain_ns is None else max(best.step_time_ns, min(worst, chain_ns))
        own = [each for each in self.found.values() if each.fits and self.runs(each)]
        near = [each for each in own if each.step_time_ns <= (piped if each.candidate.num_stages > 1 else worst)]
        rest = [each for each in own if each not in near]
        return sorted(near, key=self.simplicity) + sorted(rest, key=lambda each: each.sort_key)

    def simplicity(self, each: Evaluated) -> tuple[object, ...]:
        """Return how simple a candidate is; smaller is simpler."""
        rungs = [RUNGS.index(name) for name in each.strategy.split("+")]
        known = each.candidate
        remade = any(place.config.recompute != "none" for place in known.places)
        alignment = self.layer_alignment(known.partition) if known.num_stages > 1 else 0
        schedule = PLAIN.index(known.schedule) if known.schedule in PLAIN else len(PLAIN)
        schedule += known.schedule == WITHIN_LIMIT  # fused before split
        return (
            len(rungs) + remade,
            sorted(rungs, reverse=True),
            alignment,
            known.num_stages,
            schedule,
            known.line,
            each.sort_key,
        )

    def announce(self, line: str) -> None:
        """Report a line, if there is any."""
        if self.report and line:
            self.report(line)

    def say(self, phase: str) -> None:
        """Report the best time, the bound and the gap, if any of them is news."""
        best = self.best
        news = (best.sort_key, self.lower_bound_ns)
        if not self.report or news == self._said:
            return
        self._said = news
        line = f"{phase}: {best.strategy} {best.step_time_ns / 1e6:.3f} ms" if best.fits else f"{phase}: nothing fits"
        if best.fits and self.lower_bound_ns:
            gap = best.step_time_ns / self.lower_bound_ns - 1
            line += f", bound {self.lower_bound_ns / 1e6:.3f} ms, gap {100 * gap:.2f} %"
        self.report(line)


def _rank_order(known: Candidate) -> RankOrder:
    """Return the order that is searched which a candidate's ranks follow; empty where they follow neither."""
    return rank_order_of([place.config for place in known.places], [place.ranks for place in known.places], SEARCHED)


def _in_line(strategy: str) -> str:
    return strategy.replace("graph-pipeline", "pipeline")
