"""Plans side by side: one row a plan, what their runs measured, and where what they answer differs.

Step times of other models or batches, or that rest on other links, trainers, optimizers, precisions or calibrations,
or on constants of another standing, do not compare, so such rows are marked. Leaves out files and flags
(`planner.commands.compare`), what one plan comes to (`planner.report.comparison.compared`) and how pictures are drawn
(`planner.report.comparison.pictures`, `planner.report.html`).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.report.comparison.compared import ASSUMED, ComparedPlan
from planner.report.comparison.machines import unlike_parts
from planner.report.comparison.side_by_side import tables
from planner.report.summary.figures import figures
from planner.report.summary.standing import standings
from planner.report.summary.text import Table
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class Comparison:
    """Some plans; the first is the one whose question and assumptions the others are held against.

    Where their batches are unlike, times are held against each other by sample.
    """

    plans: tuple[ComparedPlan, ...]

    def __post_init__(self) -> None:
        stems = [Path(each.name).stem for each in self.plans]
        plans = tuple(
            replace(
                each,
                short=stem if stems.count(stem) == 1 else each.name,
                samples=each.plan.batch.global_size if self.by_sample else 1,
            )
            for stem, each in zip(stems, self.plans, strict=True)
        )
        object.__setattr__(self, "plans", plans)

    @property
    def by_sample(self) -> bool:
        """Whether the batches are unlike."""
        return len({each.plan.batch.global_size for each in self.plans}) > 1

    def differing(self, compared: ComparedPlan) -> list[str]:
        """Return in what a plan differs from the first: ``model``, ``batch``, and names of assumptions."""
        first, own = self.plans[0].plan, compared.plan
        asked = [
            *(["model"] if own.fingerprint != first.fingerprint else []),
            *(["batch"] if own.batch.global_size != first.batch.global_size else []),
        ]
        assumed = [name for name in ASSUMED if getattr(own.assumptions, name) != getattr(first.assumptions, name)]
        stands = [set(standings(plan).values()) for plan in (first, own)]
        unlike = [*unlike_parts(first.cluster, own.cluster), *(["standing"] if stands[0] != stands[1] else [])]
        return asked + list(dict.fromkeys([*assumed, *unlike]))

    @property
    def comparable(self) -> bool:
        """Whether the times compare, by step or by sample: one model, the same assumptions."""
        return not any(set(self.differing(compared)) - {"batch"} for compared in self.plans)

    def rows(self) -> list[dict[str, object]]:
        """Return the JSON form, one object a plan."""
        return [self._row(compared) for compared in self.plans]

    def _row(self, compared: ComparedPlan) -> dict[str, object]:
        plan, measurement = compared.plan, compared.measurement
        return {
            "plan": compared.name,
            **figures(
                plan,
                "model schedule stages depth ranks microbatches microbatch_size step_time_ns step_time_interval_ns "
                "span_ns samples_per_s tokens_per_s mfu mfu_causal bubble_ratio",
            ),
            "bubble_causes": dict(compared.causes),
            "communication": compared.communication.to_json(),
            "peak_memory_bytes": max(plan.prediction.peak_memory_bytes),
            "peak_memory_bytes_per_rank": list(plan.prediction.peak_memory_bytes),
            "peak_memory_upper_bytes": max(plan.prediction.peak_memory_upper_bytes),
            "memory_limit_bytes": compared.limit_bytes,
            **figures(plan, "fits lower_bound_ns gap scope status assumptions standing"),
            "differs_in": self.differing(compared),
            "measured": measurement.to_json() if measurement else None,
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
        from planner.report.comparison.pictures import compared_row
        from simulator.charts import comparison

        return comparison(ax, list(map(compared_row, self.plans)), by_sample=self.by_sample)

    def figure(self) -> "Figure":
        """Return the whole picture: stage graphs, timelines on one axis, the comparison."""
        from planner.report.comparison.pictures import compare_figure

        return compare_figure(self.plans, comparable=self.comparable, by_sample=self.by_sample)

    def timelines(self) -> list[tuple[str, Timeline]]:
        """Return all timelines, each with its name."""
        rows = []
        for each in self.plans:
            predicted = f"{each.short} predicted" if each.measured_timeline else each.short
            rows.append((predicted, each.predicted))
            rows += [(f"{each.short} measured", each.measured_timeline)] if each.measured_timeline else []
        return rows

    def text(self) -> list[str | Table]:
        """Return what people read."""
        return tables(self.plans, self.differing)
