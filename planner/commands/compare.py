"""Put plans side by side: one row a plan, pictures, and what a run of them measured.

    penstock compare plan.json chain.json --chart compare.png
    penstock compare plan.json --measured timeline.json --html compare.html

A picture draws every plan's timeline on one time axis, over the bubble and the step time of each. --measured takes the
timeline that torchrun -m executor PLAN --timeline F wrote, one for each of the first plans: it is drawn below the
predicted one, and the difference of the step times is divided into compute, communication, waiting and Python, on the
rank whose own work explains most of it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import UsageError
from planner.commands.answer import Answer
from planner.plan import Plan, read_plan
from planner.report.text import Table, mebibytes, milliseconds, percent

if TYPE_CHECKING:
    from planner.report.measured import Measurement
    from planner.report.pictures import Picture
    from simulator.attribution import Attribution
    from simulator.timeline import Timeline

NUM_DRIFTS = 5
"""Kinds of action that people are shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plans", nargs="+", metavar="PLAN", help="plan files")
    parser.add_argument("--measured", action="append", default=[], metavar="TIMELINE",
                        help="measured timeline of the first plan; again for the second, and so on")  # fmt: skip
    parser.add_argument("--chart", metavar="F", help="picture of all timelines (.png, .svg or .pdf)")
    parser.add_argument("--html", metavar="F", help="one page with the tables and the picture, complete in itself")
    parser.add_argument("--trace", metavar="F", help="all timelines as one Perfetto trace (.json or .json.gz)")


@dataclass(frozen=True)
class _Run:
    """A plan and, where it was run, the file of its measured timeline."""

    path: str
    plan: Plan
    measured: str | None

    @cached_property
    def predicted(self) -> "Timeline":
        from planner.plan.replay import replay

        return replay(self.plan)

    @cached_property
    def measurement(self) -> "Measurement | None":
        from planner.report.measured import Measurement, read_measured

        if not self.measured:
            return None
        return Measurement(self.plan, self.predicted, read_measured(self.measured, self.plan))


def run(args: argparse.Namespace) -> Answer:
    """Compare the plans."""
    if len(args.measured) > len(args.plans):
        raise UsageError(
            f"{len(args.measured)} measured timelines for {len(args.plans)} plans; give at most one a plan"
        )
    runs = [_Run(path, read_plan(path), file) for path, file in zip_longest(args.plans, args.measured)]
    tables = [_table(runs), *_measured_tables(runs)]
    written = {name: getattr(args, name) for name in ("chart", "html", "trace") if getattr(args, name)}
    _write(written, runs, tables)
    return Answer({"rows": [_row(run) for run in runs], **written}, tables)


def _row(run: _Run) -> dict[str, object]:
    from planner.plan.replay import depth

    plan = run.plan
    prediction, search = plan.prediction, plan.search
    return {
        "plan": run.path,
        "model": plan.model_name,
        "schedule": plan.schedule,
        "stages": len(plan.stages),
        "depth": depth(plan),
        "ranks": len(plan.orders),
        "microbatches": plan.batch.num_microbatches,
        "microbatch_size": plan.batch.microbatch_size,
        "step_time_ns": prediction.step_time_ns,
        "span_ns": prediction.span_ns,
        "samples_per_s": plan.batch.global_size * 1e9 / prediction.step_time_ns if prediction.step_time_ns else None,
        "bubble_ratio": prediction.bubble_ratio,
        "peak_memory_bytes": max(prediction.peak_memory_bytes),
        "lower_bound_ns": search.lower_bound_ns,
        "gap": search.gap,
        "scope": search.scope,
        "status": search.status,
        "measured": run.measurement.to_json() if run.measurement else None,
    }


def _table(runs: Sequence[_Run]) -> Table:
    from planner.plan.replay import depth

    columns = ("plan", "schedule", "stages", "depth", "step", "bubble", "peak memory", "lower bound", "gap")
    rows = []
    for run in runs:
        prediction, search = run.plan.prediction, run.plan.search
        rows.append(
            (
                run.path,
                run.plan.schedule,
                str(len(run.plan.stages)),
                str(depth(run.plan)),
                milliseconds(prediction.step_time_ns),
                percent(prediction.bubble_ratio),
                mebibytes(max(prediction.peak_memory_bytes)),
                milliseconds(search.lower_bound_ns),
                percent(search.gap),
            )
        )
    return Table(columns, rows)


def _measured_tables(runs: Sequence[_Run]) -> list[Table]:
    """Return the tables of the measured runs: the step times and their differences, and what is furthest off."""
    measured = [(run.path, run.measurement) for run in runs if run.measurement]
    if not measured:
        return []
    steps = [_step(path, measurement) for path, measurement in measured]
    drifts = [row for path, measurement in measured for row in _drifts(path, measurement)]
    parts = ("compute", "communication", "waiting", "Python", "on rank")
    columns = ("plan", "predicted", "measured", "error", "difference", *parts)
    furthest = ("plan", "actions", "number", "predicted", "measured", "difference")
    return [
        Table(columns, steps, "measured minus predicted"),
        Table(furthest, drifts, "actions furthest from the plan, summed over micro-batches"),
    ]


def _step(path: str, measurement: "Measurement") -> tuple[str, ...]:
    found = measurement.attribution
    return (
        path,
        milliseconds(measurement.predicted.step_time_ns),
        milliseconds(measurement.measured.step_time_ns),
        f"{measurement.error_percent:+.2f} %",
        _signed(found.parts.total),
        *map(_signed, _parts(found).values()),
        str(found.rank),
    )


def _drifts(path: str, measurement: "Measurement") -> list[tuple[str, ...]]:
    return [
        (
            path,
            f"{drift.kind} of stage {drift.stage}",
            str(drift.num_actions),
            milliseconds(drift.predicted_ns),
            milliseconds(drift.measured_ns),
            _signed(drift.difference_ns),
        )
        for drift in measurement.attribution.drifts[:NUM_DRIFTS]
    ]


def _parts(found: "Attribution") -> dict[str, int]:
    parts = found.parts
    return {
        "compute": parts.compute,
        "communication": parts.communication,
        "waiting": parts.waiting,
        "Python": parts.python,
    }


def _signed(time_ns: int) -> str:
    return f"{time_ns / 1e6:+.3f} ms"


def _write(paths: dict[str, str], runs: Sequence[_Run], tables: Sequence[Table]) -> None:
    """Write the chart, the page and the trace that were asked for."""
    if "trace" in paths:
        _trace(paths["trace"], runs)
    if "chart" in paths or "html" in paths:
        from planner.report.pictures import compare_figure
        from simulator.charts import save_figure

        figure = compare_figure(_pictures(runs))
        if "chart" in paths:
            save_figure(figure, paths["chart"])
        if "html" in paths:
            from planner.report.page import write_page

            write_page(paths["html"], "Plans side by side", tables, figure)


def _pictures(runs: Sequence[_Run]) -> "list[Picture]":
    from planner.report.pictures import Picture

    rows = []
    for name, run in _named(runs):
        measurement = run.measurement
        if measurement:
            found = measurement.attribution
            parts = ", ".join(f"{part} {_signed(time_ns)}" for part, time_ns in _parts(found).items())
            note = f"difference on rank {found.rank}: {parts}"
            rows.append(Picture(name, run.plan, run.predicted, measurement.measured, note))
        else:
            rows.append(Picture(name, run.plan, run.predicted))
    return rows


def _trace(path: str, runs: Sequence[_Run]) -> None:
    from simulator.trace import write_traces

    rows = []
    for name, run in _named(runs):
        if run.measurement:
            rows += [(f"{name} predicted", run.predicted), (f"{name} measured", run.measurement.measured)]
        else:
            rows.append((name, run.predicted))
    write_traces(path, rows)


def _named(runs: Sequence[_Run]) -> list[tuple[str, _Run]]:
    """Return each run with the name of its file, or with the whole path where two files share a name."""
    stems = [Path(run.path).stem for run in runs]
    return [(stem if stems.count(stem) == 1 else run.path, run) for stem, run in zip(stems, runs, strict=True)]
