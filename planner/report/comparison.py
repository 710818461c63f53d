"""Plans side by side: one row a plan, what their runs measured, and where their assumptions differ.

Step times that rest on different links, trainers, optimizers, precisions or calibrations do not compare, so such rows
are marked. Leaves out files and flags (`planner.commands.compare`) and how pictures are drawn
(`planner.report.pictures`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from planner.plan import Plan
from planner.plan.replay import depth, replay
from planner.report.measured import Measurement, read_measured
from planner.report.text import Table, mebibytes, milliseconds, percent
from simulator.attribution import Attribution
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from planner.report.pictures import Picture

ASSUMED = ("links", "trainer", "optimizer", "precision", "calibration")
"""Assumptions under which step times compare only when they are the same."""
NUM_DRIFTS = 5
"""Kinds of action that people are shown."""


@dataclass(frozen=True)
class ComparedPlan:
    """A plan under a name and, where it was run, the file of its measured timeline."""

    name: str
    plan: Plan
    measured: str | Path | None = None

    @cached_property
    def predicted(self) -> Timeline:
        """The simulated timeline."""
        return replay(self.plan)

    @cached_property
    def measurement(self) -> Measurement | None:
        """The measured timeline beside it."""
        if not self.measured:
            return None
        return Measurement(self.plan, self.predicted, read_measured(self.measured, self.plan))

    @property
    def samples_per_s(self) -> float | None:
        """Samples of the batch over the step time."""
        step_ns = self.plan.prediction.step_time_ns
        return self.plan.batch.global_size * 1e9 / step_ns if step_ns else None


@dataclass(frozen=True)
class Comparison:
    """Some plans; the first is the one whose assumptions the others are held against."""

    plans: tuple[ComparedPlan, ...]

    def differing(self, compared: ComparedPlan) -> list[str]:
        """Return the names of the assumptions in which a plan differs from the first."""
        first, own = self.plans[0].plan.assumptions, compared.plan.assumptions
        return [name for name in ASSUMED if getattr(own, name) != getattr(first, name)]

    def rows(self) -> list[dict[str, object]]:
        """Return the JSON form, one object a plan."""
        return [self._row(compared) for compared in self.plans]

    def _row(self, compared: ComparedPlan) -> dict[str, object]:
        plan = compared.plan
        prediction, search = plan.prediction, plan.search
        return {
            "plan": compared.name,
            "model": plan.model_name,
            "schedule": plan.schedule,
            "stages": len(plan.stages),
            "depth": depth(plan),
            "ranks": len(plan.orders),
            "microbatches": plan.batch.num_microbatches,
            "microbatch_size": plan.batch.microbatch_size,
            "step_time_ns": prediction.step_time_ns,
            "span_ns": prediction.span_ns,
            "samples_per_s": compared.samples_per_s,
            "bubble_ratio": prediction.bubble_ratio,
            "peak_memory_bytes": max(prediction.peak_memory_bytes),
            "lower_bound_ns": search.lower_bound_ns,
            "gap": search.gap,
            "scope": search.scope,
            "status": search.status,
            "assumptions": plan.assumptions.to_json(),
            "differs_in": self.differing(compared),
            "measured": compared.measurement.to_json() if compared.measurement else None,
        }

    def table(self) -> "DataFrame":
        """Return the rows as a table, the plans its index; what was measured as a time and its error."""
        from pandas import DataFrame

        rows = []
        for row in self.rows():
            measured = row.pop("measured")
            found = measured if isinstance(measured, dict) else {}
            own = {"measured_ns": found.get("step_time_ns"), "error_percent": found.get("error_percent")}
            rows.append({key: value for key, value in row.items() if key != "assumptions"} | own)
        return DataFrame(rows).set_index("plan")

    def draw(self, ax: "Axes") -> "Axes":
        """Draw the step times with their idle shares, bounds and measured times."""
        from planner.report.pictures import compared_row
        from simulator.charts import comparison

        return comparison(ax, [compared_row(picture) for picture in self._pictures()])

    def figure(self) -> "Figure":
        """Return the whole picture: stage graphs, timelines on one axis, the comparison."""
        from planner.report.pictures import compare_figure

        return compare_figure(list(self._pictures()))

    def timelines(self) -> list[tuple[str, Timeline]]:
        """Return all timelines, each with its name."""
        rows = []
        for name, compared in self._named():
            if compared.measurement:
                measured = compared.measurement.measured
                rows += [(f"{name} predicted", compared.predicted), (f"{name} measured", measured)]
            else:
                rows.append((name, compared.predicted))
        return rows

    def text(self) -> list[Table]:
        """Return what people read."""
        return [self._side_by_side(), *self._assumptions(), *self._measured()]

    def _side_by_side(self) -> Table:
        columns = ("plan", "schedule", "stages", "depth", "step", "samples/s", "bubble", "peak memory", "lower bound",
                   "gap")  # fmt: skip
        rows = []
        for compared in self.plans:
            plan, prediction, search = compared.plan, compared.plan.prediction, compared.plan.search
            rows.append(
                (
                    compared.name + (" *" if self.differing(compared) else ""),
                    plan.schedule,
                    str(len(plan.stages)),
                    str(depth(plan)),
                    milliseconds(prediction.step_time_ns),
                    f"{compared.samples_per_s or 0:.1f}",
                    percent(prediction.bubble_ratio),
                    mebibytes(max(prediction.peak_memory_bytes)),
                    milliseconds(search.lower_bound_ns),
                    percent(search.gap),
                )
            )
        return Table(columns, rows)

    def _assumptions(self) -> list[Table]:
        """Return the table of what differs, if anything does."""
        named = [name for name in ASSUMED if any(name in self.differing(compared) for compared in self.plans)]
        if not named:
            return []
        rows = [
            (compared.name, *(getattr(compared.plan.assumptions, name) or "not said" for name in named))
            for compared in self.plans
        ]
        title = "* rests on other assumptions than the first plan: the step times do not compare"
        return [Table(("plan", *named), rows, title)]

    def _measured(self) -> list[Table]:
        """Return the tables of the measured runs: the step times and their differences, and what is furthest off."""
        measured = [(each.name, each.measurement) for each in self.plans if each.measurement]
        if not measured:
            return []
        steps = [_step(name, measurement) for name, measurement in measured]
        drifts = [row for name, measurement in measured for row in _drifts(name, measurement)]
        parts = ("compute", "communication", "waiting", "Python", "on rank")
        columns = ("plan", "predicted", "measured", "error", "difference", *parts)
        furthest = ("plan", "actions", "number", "predicted", "measured", "difference")
        return [
            Table(columns, steps, "error: of the prediction; differences: measured minus predicted"),
            Table(furthest, drifts, "actions furthest from the plan, summed over micro-batches"),
        ]

    def _pictures(self) -> "Iterator[Picture]":
        from planner.report.pictures import Picture

        for name, compared in self._named():
            measurement = compared.measurement
            if measurement:
                found = measurement.attribution
                parts = ", ".join(f"{part} {_signed(time_ns)}" for part, time_ns in _parts(found).items())
                note = f"difference on rank {found.rank}: {parts}"
                yield Picture(name, compared.plan, compared.predicted, measurement.measured, note)
            else:
                yield Picture(name, compared.plan, compared.predicted)

    def _named(self) -> list[tuple[str, ComparedPlan]]:
        """Return each plan with the stem of its name, or with the whole where two stems are the same."""
        stems = [Path(compared.name).stem for compared in self.plans]
        pairs = zip(stems, self.plans, strict=True)
        return [(stem if stems.count(stem) == 1 else compared.name, compared) for stem, compared in pairs]


def _step(name: str, measurement: Measurement) -> tuple[str, ...]:
    found = measurement.attribution
    return (
        name,
        milliseconds(measurement.predicted.step_time_ns),
        milliseconds(measurement.measured.step_time_ns),
        f"{measurement.error_percent:+.2f} %",
        _signed(found.parts.total),
        *map(_signed, _parts(found).values()),
        str(found.rank),
    )


def _drifts(name: str, measurement: Measurement) -> Sequence[tuple[str, ...]]:
    return [
        (
            name,
            f"{drift.kind} of stage {drift.stage}",
            str(drift.num_actions),
            milliseconds(drift.predicted_ns),
            milliseconds(drift.measured_ns),
            _signed(drift.difference_ns),
        )
        for drift in measurement.attribution.drifts[:NUM_DRIFTS]
    ]


def _parts(found: Attribution) -> dict[str, int]:
    parts = found.parts
    return {
        "compute": parts.compute,
        "communication": parts.communication,
        "waiting": parts.waiting,
        "Python": parts.python,
    }


def _signed(time_ns: int) -> str:
    return f"{time_ns / 1e6:+.3f} ms"
