"""What each means of a plan gains: the same question asked with one freedom more at a time.

The means are those by which GraphPipe explains its gain (Jeon et al., GraphPipe, ASPLOS 2025, arXiv:2406.17145):
branches side by side make a pipeline less deep, and what less depth holds less lets micro-batches be larger; then
split backwards, and stages that share devices. Whatever else is open stays open in every row. Each row ranges
over all that the one before it does, so that a slower plan found for it gives way to that one's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from costmodel.errors import UsageError
from planner.candidate.candidate import IN_FLIGHT
from planner.plan import Plan
from planner.plan.replay import depth
from planner.question.problem import AUTO, Problem, Report
from planner.question.targets import LINE_TARGETS
from planner.report.summary.figures import figures
from planner.report.summary.text import Table, duration, percent, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE, BRANCHES, LARGER, SPLIT, SHARED = (
    "stages in a line", "branches side by side", "larger micro-batches", "split backward", "stages that share devices",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Means:
    """One row: a freedom, and the best plan with it and all before."""

    name: str
    plan: Plan

    @property
    def step_time_ns(self) -> int:
        """Its step."""
        return self.plan.prediction.step_time_ns


@dataclass(frozen=True, slots=True)
class Ablation:
    """The rows that were planned to their end, from the line on, and whether an interrupt ended them."""

    rows: Sequence[Means]
    interrupted: bool = False

    @property
    def gains(self) -> list[float]:
        """By what factor each row is faster than the one before; 1 for the first."""
        steps = [row.step_time_ns for row in self.rows]
        return [before / after for before, after in zip(steps[:1] + steps, steps, strict=False)]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        rows = [
            {
                "means": row.name,
                **figures(
                    row.plan,
                    "step_time_ns microbatch_size stages depth schedule peak_memory_bytes lower_bound_ns scope",
                ),
                "gain": gain,
            }
            for row, gain in zip(self.rows, self.gains, strict=True)
        ]
        gain = self.rows[0].step_time_ns / self.rows[-1].step_time_ns
        return {"rows": rows, "gain": gain, "interrupted": self.interrupted}

    def table(self) -> Table:
        """Return the rows for people."""
        rows = [
            (
                f"{'+ ' if number else ''}{row.name}",
                duration(row.step_time_ns),
                percent(gain - 1) if number else "-",
                str(row.plan.batch.microbatch_size),
                f"{len(row.plan.stages)} in depth {depth(row.plan)}",
                row.plan.schedule,
                size(max(row.plan.prediction.peak_memory_bytes)),
            )
            for number, (row, gain) in enumerate(zip(self.rows, self.gains, strict=True))
        ]
        return Table(("means", "step", "gain", "micro-batch", "stages", "schedule", "peak memory"), rows)

    def figure(self) -> "Figure":
        """Return the rows as bars, with their idle time and bounds."""
        from simulator.charts import ComparedRow, comparison, new_figure

        rows = [
            ComparedRow(
                f"{'+ ' if number else ''}{row.name}",
                row.step_time_ns,
                row.plan.prediction.bubble_ratio,
                row.plan.search.lower_bound_ns or 0,
            )
            for number, row in enumerate(self.rows)
        ]
        figure, (ax,) = new_figure([1.0 + 0.45 * len(rows)])
        comparison(ax, rows, title=f"what each means gains: {self.rows[0].plan.model_name}")
        return figure


Planned = Callable[[Problem, Report | None], Plan]
"""What answers a problem with a plan: `planner.search.planners.plan`."""


def ablation(problem: Problem, plan: Planned, report: Report | None = None) -> Ablation:
    """Plan with more and more freedom.

    Parameters
    ----------
    problem : Problem
        With planner and schedule open; its time limit is of each row.
    plan : Planned
    report : Report, optional
        Told of each row before it is planned.

    Raises
    ------
    UsageError
        Where a flag fixes what a row opens.
    NoPlanFits
        When the line does not fit.
    """
    fixed = [
        flag
        for flag, open_value, value in (
            ("--planner", "ours", problem.planner),
            ("--schedule", AUTO, problem.schedule),
            ("--microbatch-size", None, problem.microbatch_size),
            ("--chunks", None, problem.space.chunks),
        )
        if value != open_value
    ]
    if fixed:
        raise UsageError(f"{fixed[0]} fixes what an ablation opens row by row; leave it out")
    if problem.target in LINE_TARGETS:
        raise UsageError(
            f"--target {problem.target} runs lines alone, of which an ablation has nothing to say; take any"
        )
    rows: list[Means] = []
    try:
        for name, asked in _questions(problem, rows):
            if report:
                report(f"{name}: planning for {problem.effort.time_limit_s:g} s at most")
            found = Means(name, plan(asked, report))
            interrupted = found.plan.search.limited_by == "interrupted"
            if interrupted and rows:
                return Ablation(rows, interrupted=True)
            slower = bool(rows) and rows[-1].step_time_ns <= found.step_time_ns
            rows.append(replace(rows[-1], name=name) if slower else found)
            if interrupted:
                return Ablation(rows, interrupted=True)
    except KeyboardInterrupt:
        if not rows:
            raise
        return Ablation(rows, interrupted=True)
    return Ablation(rows)


def _questions(problem: Problem, rows: Sequence[Means]) -> Iterator[tuple[str, Problem]]:
    """Yield the rows' problems, each after the one before was answered."""
    whole = replace(problem, schedule=IN_FLIGHT, space=replace(problem.space, chunks=1))
    yield LINE, replace(whole, planner="chain")
    yield BRANCHES, replace(whole, microbatch_size=rows[0].plan.batch.microbatch_size)
    yield LARGER, whole
    yield SPLIT, replace(whole, schedule=AUTO)
    yield SHARED, problem
