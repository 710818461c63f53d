"""One figure of several plans: each one's stage graph, timeline and memory on a common time axis, then the comparison.

The picture of step time against memory comes last. Where a plan was run, the measured timeline is below the
predicted one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from planner.plan import Plan
from planner.plan.replay import depth
from planner.report.comparison.compared import ComparedPlan
from planner.report.summary.points import lowest_limit, pareto_points
from planner.report.summary.text import size
from simulator.charts import (
    MEMORY_INCHES,
    ComparedRow,
    comparison,
    gantt,
    gantt_height,
    memory,
    new_figure,
    pair_height,
    pareto,
    predicted_and_measured,
    rows_of,
    stage_graph_height,
    stage_graph_picture,
)
from simulator.schedule import stage_graph
from simulator.timeline import Timeline

COMPARISON_INCHES = 0.9
"""Height of the comparison, with this much more for every plan."""
PARETO_INCHES = 3.0


@dataclass(frozen=True, slots=True)
class Picture:
    """A plan under a short name, and the measured timeline and a note on it where there is one."""

    name: str
    compared: ComparedPlan
    measured: Timeline | None = None
    note: str = ""

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.compared.plan

    @property
    def predicted(self) -> Timeline:
        """Its simulated timeline."""
        return self.compared.predicted

    @property
    def end_ns(self) -> int:
        """When the longer of the timelines ends."""
        return max(t.step_time_ns for t in (self.predicted, self.measured) if t)

    @property
    def height(self) -> float:
        """A good height in inches for the timelines."""
        if self.measured:
            return pair_height(self.predicted.num_ranks)
        return gantt_height(len(rows_of(self.predicted)))


def compare_figure(pictures: Sequence[Picture], *, comparable: bool, by_sample: bool = False) -> Figure:
    """Return the figure of some plans; where their times do not compare, none is drawn as beating another."""
    graphs = [stage_graph(picture.plan.costs()) for picture in pictures]
    end_ns = max(picture.end_ns for picture in pictures)
    heights = [
        height
        for graph, picture in zip(graphs, pictures, strict=True)
        for height in (stage_graph_height(graph), picture.height, MEMORY_INCHES)
    ]
    figure, axes = new_figure([*heights, COMPARISON_INCHES + 0.35 * len(pictures), PARETO_INCHES])
    for i, (graph, picture) in enumerate(zip(graphs, pictures, strict=True)):
        plan = picture.plan
        title = f"{picture.name}: {len(plan.stages)} stages in depth {depth(plan)}, {plan.schedule}"
        names = [stage.name.replace(" .. ", "\n.. ") for stage in plan.stages]
        ranks = [stage.ranks for stage in plan.stages]
        stage_graph_picture(axes[3 * i], graph, captions=names, edge_labels=sizes(plan), title=title, ranks=ranks)
        _timelines(axes[3 * i + 1], picture, end_ns)
        limit = picture.compared.limit_bytes or 0
        title = f"{picture.name}, memory"
        memory(axes[3 * i + 2], picture.predicted, limit_bytes=limit, title=title, ranks=plan.blocks, end_ns=end_ns)
    comparison(axes[-2], [compared_row(picture) for picture in pictures], by_sample=by_sample)
    named = [(picture.name, picture.compared) for picture in pictures]
    points = pareto_points(named)[0]
    pareto(axes[-1], points, limit_bytes=lowest_limit(named), stairs=comparable, by_sample=by_sample)
    return figure


def sizes(plan: Plan) -> dict[tuple[int, int], str]:
    """Return what each edge sends, for people."""
    return {(edge.source, edge.target): size(edge.size_bytes).replace(" ", "\n") for edge in plan.edges}


def _timelines(ax: Axes, picture: Picture, end_ns: int) -> None:
    if picture.measured:
        predicted_and_measured(
            ax, picture.predicted, picture.measured, title=picture.name, note=picture.note, end_ns=end_ns
        )
    else:
        gantt(ax, picture.predicted, title=picture.name, end_ns=end_ns, ranks=picture.plan.blocks)


def compared_row(picture: Picture) -> ComparedRow:
    """Return a plan's bar of the comparison."""
    shared = picture.compared.shared_ns
    step_ns, bound_ns = shared(picture.predicted.step_time_ns), shared(picture.plan.search.lower_bound_ns or 0)
    measured_ns = shared(picture.measured.step_time_ns) if picture.measured else 0
    return ComparedRow(picture.name, step_ns, picture.predicted.bubble_ratio, bound_ns, measured_ns)
