"""What ``penstock plan`` answers: a sentence, the ladder, the bound with its scope, and the same as JSON.

Leaves out why the plan takes as long as it does (`planner.report.why.explanation`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from costmodel.codec import to_json
from planner.plan import Plan
from planner.plan.file import stages_to_json
from planner.plan.fitting import DOES_NOT_FIT, FITS, MAY_NOT_FIT, fitting_of
from planner.plan.limited_by import WORDS
from planner.plan.provenance import job_of, rank_limits
from planner.plan.rank_order import RANK_ORDER
from planner.plan.replay import depth, replay
from planner.plan.rung import SINGLE, cost_per_million_samples, rung
from planner.question.assumptions import step_interval
from planner.question.problem import Problem
from planner.report.comparison.moved import Moved
from planner.report.summary.alarms import Alarm, alarms
from planner.report.summary.figures import figures
from planner.report.summary.gain import gain
from planner.report.summary.plan_lines import MOST_ROWS, assumed, expected, ladder
from planner.report.summary.rates import mfu_causal, samples_per_s, tokens_per_s
from planner.report.summary.run_cost import RunCost, RunTarget, cost_lines, run_cost
from planner.report.summary.text import Table, duration, for_people, money, percent, size

FITTING_WORDS = {
    FITS: "it fits in memory",
    MAY_NOT_FIT: "it may not fit in memory",
    DOES_NOT_FIT: "it does not fit in memory",
}

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True)
class PlanAnswer:
    """A plan as an answer to its problem.

    Attributes
    ----------
    plan : Plan
    problem : Problem
    seconds : float
        What the whole command took so far.
    path : str
        File of the plan; empty where it was not written.
    searched : mapping
        What the search did (`planner.search.state.record`): readings of clocks, which no plan holds.
    target : RunTarget
        Tokens, days and money of the run that the plan is for.
    """

    plan: Plan
    problem: Problem
    seconds: float
    path: str = ""
    searched: Mapping[str, object] = field(default_factory=dict)
    target: RunTarget = field(default_factory=RunTarget)

    def __str__(self) -> str:
        return "\n".join(map(str, self.text()))

    @property
    def samples_per_s(self) -> float | None:
        """Samples of the batch over the step time."""
        return samples_per_s(self.plan)

    @cached_property
    def devices_used(self) -> int:
        """Devices that the plan uses."""
        return len(self.plan.orders)

    @cached_property
    def alarms(self) -> list[Alarm]:
        """What should make the reader stop."""
        return alarms(self.problem, self.plan, self.searched)

    @property
    def cost(self) -> RunCost | None:
        """What a step, a billion tokens and the run cost; None where neither a price nor tokens are said."""
        return run_cost(self.plan, self.target, self.problem.prices)

    @property
    def tie(self) -> list[str]:
        """Strategies whose best plans are no slower than the best by more than a simpler plan may be.

        Where the answer fits for sure, those that do are held against the best of them.
        """
        words = [FITS] if fitting_of(self.plan) == FITS and not self.problem.allow_tight else [FITS, MAY_NOT_FIT, ""]
        rungs = [each for each in self.plan.rungs if not each.over_memory_bytes and each.fits in words]
        most_ns = min((each.step_time_ns for each in rungs), default=0) * self.problem.near
        return [each.strategy for each in rungs if each.step_time_ns <= most_ns]

    @property
    def best_unrun(self) -> dict[str, object] | None:
        """Step and strategy of the best plan that no trainer runs, where it is faster than this one."""
        found = self.plan.extra.get("best_unrun")
        return dict(found) if isinstance(found, dict) else None

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        plan = self.plan
        return {
            **figures(plan, "status step_time_ns step_time_interval_ns samples_per_s tokens_per_s mfu mfu_causal"),
            "cost": self.cost.to_json() if self.cost else None,
            "cost_per_million_samples": cost_per_million_samples(plan),
            **figures(plan, "best_step_time_ns lower_bound_ns gap"),
            "best_gap": self._best_gap,
            **figures(plan, "scope model_objective_ns model_lower_bound_ns model_gap strategy"),
            "rungs": list(map(to_json, plan.rungs)),
            **figures(plan, "assumptions standing devices_used"),
            "choice": plan.extra.get("choice", ""),
            "tie": self.tie,
            **({"from": {**self._start, "moved": self._moved.to_json()}} if self._moved else {}),
            "best_unrun": self.best_unrun,
            "alarms": [each.to_json() for each in self.alarms],
            "searched": dict(self.searched),
            "search_seconds": self.seconds,
            **figures(plan, "limited_by baselines"),
            "stages": stages_to_json(plan),
            **figures(plan, "schedule microbatches microbatch_size peak_memory_bytes peak_memory_upper_bytes fits"),
            "estimated": list(plan.assumptions.estimated),
            "runs_on": list(plan.runs_on),
        }

    def table(self) -> "DataFrame":
        """Return the ladder: one row a rung, strategies its index, times in ns and sizes in bytes."""
        from pandas import DataFrame

        return DataFrame(map(to_json, self.plan.rungs)).set_index("strategy")

    def draw(self, ax: "Axes") -> "Axes":
        """Draw the plan's timeline."""
        from simulator.charts import gantt

        title = f"{self.plan.model_name}, {rung(self.plan)}"
        return gantt(ax, replay(self.plan), title=title, ranks=self.plan.blocks)

    @property
    def _best_gap(self) -> float | None:
        bound_ns, best_ns = self.plan.search.lower_bound_ns, self.plan.search.best_step_time_ns
        return best_ns / bound_ns - 1 if bound_ns else None

    def text(self, *, whole: bool = False) -> list[str | Table]:
        """Return what people read, with the whole ladder if so asked."""
        plan, prediction, search, batch = self.plan, self.plan.prediction, self.plan.search, self.plan.batch
        stages = f"{len(plan.stages)} stages in depth {depth(plan)}, {plan.schedule}, " if len(plan.stages) > 1 else ""
        rivals = [f"{name} {duration(ns)}" for name, ns in search.baselines.items()]
        return [
            self._headline(),
            self._how_sure(),
            f"plan         {self.path or plan.model_name}: {rung(plan)} on {self.devices_used} of "
            f"{self.problem.num_devices} devices, {stages}{batch.num_microbatches} micro-batches of "
            f"{batch.microbatch_size}",
            f"chosen       {plan.extra.get('choice')}",
            *self._since(),
            f"step time    {duration(prediction.step_time_ns)}   bubble {percent(prediction.bubble_ratio)}",
            *expected(plan),
            f"a second     {self._rates()}",
            *cost_lines(self.cost, self.target),
            f"lower bound  {duration(search.lower_bound_ns)}   gap {percent(search.gap)}, {search.status}",
            f"scope        {for_people(search.scope)}",
            *self._estimate(),
            f"peak memory  {size(max(prediction.peak_memory_bytes))}, at most "
            f"{size(max(prediction.peak_memory_upper_bytes))}: {fitting_of(plan)}{self._limit_not_kept()}",
            f"runs on      {', '.join(plan.runs_on) or 'no trainer as it is'}",
            *self._unrun(),
            *([f"rank order   {', '.join(plan.rank_order)}"] if plan.rank_order not in ((), RANK_ORDER) else []),
            f"assumes      {assumed(plan)}",
            *([f"baselines    {', '.join(rivals)}"] if rivals else []),
            *ladder(plan, 0 if whole else MOST_ROWS),
        ]

    def _headline(self) -> str:
        """Say in a sentence what to do, how fast that is, and whether it fits."""
        plan, used = self.plan, mfu_causal(self.plan)
        types = dict.fromkeys(plan.cluster.device_of(rank).name for rank in range(len(plan.orders)))
        share = f" ({100 * used:.0f} % of their peak)" if used else ""
        memory = FITTING_WORDS[fitting_of(plan)]
        how = f" by {rung(plan)}" if rung(plan) != SINGLE else ""
        return (
            f"Train {plan.model_name} on {self.devices_used} {' and '.join(types)}{how}: a step of "
            f"{plan.batch.global_size} samples takes {duration(plan.prediction.step_time_ns)}{share}, and {memory}."
        )

    def _how_sure(self) -> str:
        """Say in a sentence how hard was looked, what is proved, and how far off the times may be."""
        search, interval = self.plan.search, self.plan.prediction.step_time_interval_ns
        ended = WORDS.get(search.limited_by, search.limited_by)
        seen, every = self.searched.get("families_seen"), self.searched.get("families")
        looked = f"{seen:,} of {every:,} families of plans" if isinstance(seen, int) and isinstance(every, int) else ""
        took = f"{self.seconds:.1f} s" + (f", ended by {ended}" if ended else "")
        sure = "nothing bounds how much faster another plan may be"
        if search.gap is not None:
            sure = f"no plan in its scope is faster by more than {percent(1 - 1 / (1 + search.gap))}, which is proved"
        times = (
            "the times are measured"
            if not interval
            else "the times are estimates (between {} and {})".format(*map(duration, interval))
        )
        others = [name for name in self.tie if name != rung(self.plan)]
        tie = f"; as fast within {100 * self.problem.simplicity:g} %: {', '.join(others)}" if others else ""
        return f"Looked at {looked or 'what was asked for'} in {took}; {sure}; {times}{tie}."

    def _limit_not_kept(self) -> str:
        """Say that a limit above what a device has is not what counts."""
        limit, least = self.problem.memory_limit_bytes, min(filter(None, rank_limits(self.plan)), default=0)
        if not limit or limit <= least:
            return ""
        return f" (the limit of {size(limit)} is above the device's {size(least)}, which count)"

    @cached_property
    def _moved(self) -> Moved | None:
        """What moved from the old plan, where the search started from one."""
        old = self.problem.old_plan
        return Moved(old, self.plan, self.problem.profile.graph) if old else None

    @property
    def _start(self) -> dict[str, object]:
        """What became of the old plan, and what ours gains over it: a share of its step."""
        found = self.plan.extra.get("from", {})
        start, best_ns = dict(found) if isinstance(found, dict) else {}, self.plan.search.best_step_time_ns
        old_ns = start.get("step_time_ns")
        told = {**start, "best_step_time_ns": best_ns, "gain": None, "gain_interval": None}
        if not isinstance(old_ns, int) or not best_ns or not old_ns:
            return told if start else {}
        known = gain(old_ns, best_ns, step_interval(self.problem))
        return {**told, "gain": known.share, "gain_interval": known.interval}

    def _since(self) -> list[str]:
        """Say what the old plan takes here, or why it cannot be used, and what moved."""
        if not self._moved:
            return []
        start, new_ns = self._start, self.plan.prediction.step_time_ns
        old = self.problem.old_plan
        called = "today's job" if old and job_of(old) else "the old plan"
        old_ns, why_not, parts = start.get("step_time_ns"), start.get("why_not"), [called]
        if isinstance(old_ns, int):
            parts.append(f"would take {duration(old_ns)} here, this one {duration(new_ns)}")
            parts.append(f"({_compared(new_ns, old_ns)})" + ("; it" if why_not else ""))
        if why_not:
            used = "its cut was a start" if start.get("used") == "cut" else "nothing of it was used"
            parts.append(f"cannot be used as it stands: {why_not}; {used}")
        told = [f"from         {' '.join(parts)}"] if start else []
        share, interval = start.get("gain"), start.get("gain_interval")
        if isinstance(share, float) and isinstance(interval, tuple):
            low, high = map(percent, interval)
            told.append(
                f"gain         {percent(share)} by the fastest plan found, between {low} and {high} in four of five "
                "jobs: the times are estimates"
            )
        return [*told, f"moved        {self._moved.text()}"]

    def _unrun(self) -> list[str]:
        """Say what a faster plan would gain that no trainer runs."""
        found, own_ns = self.best_unrun, self.plan.prediction.step_time_ns
        if not found or not isinstance(step_ns := found.get("step_time_ns"), int):
            return []
        return [
            f"nobody runs  {found.get('strategy')} in {duration(step_ns)}, {percent(1 - step_ns / own_ns)} less: "
            "no trainer that is known here takes that plan"
        ]

    def _estimate(self) -> list[str]:
        """Say how far cuts are from the best by the estimate, which is another figure than the simulated step."""
        search = self.plan.search
        if search.model_gap is None:
            return []
        return [
            f"by estimate  {duration(search.model_objective_ns)} for the best cut, none below "
            f"{duration(search.model_lower_bound_ns)}: {percent(search.model_gap)}, of (m - 1) x largest stage + "
            "longest path, not of the step"
        ]

    def _rates(self) -> str:
        tokens, used = tokens_per_s(self.plan), mfu_causal(self.plan)
        text = f"{self.samples_per_s or 0:.1f} samples"
        text += f", {tokens:.0f} tokens" if tokens else ""
        text += f", {percent(used)} of the devices' peak" if used else ""
        cost = cost_per_million_samples(self.plan)
        return text + (f"; {money(cost)} for a million samples" if cost is not None else "")


def _compared(new_ns: int, old_ns: int) -> str:
    """Say how much longer or shorter the new step is."""
    if new_ns == old_ns or not old_ns:
        return "as long"
    return f"{percent(abs(new_ns / old_ns - 1))} {'more' if new_ns > old_ns else 'less'}"
