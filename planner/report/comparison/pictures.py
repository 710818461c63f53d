"""One figure of several plans: each one's stage graph, timeline and memory on a common time axis, then the comparison.

The picture of step time against memory comes last. Where a plan was run, the measured timeline is below the
predicted one.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from planner.plan import Plan
from planner.plan.replay import depth
from planner.report.comparison.compared import ComparedPlan
from planner.report.comparison.side_by_side import difference
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

COMPARISON_INCHES = 0.9
"""Height of the comparison, with this much more for every plan."""
PARETO_INCHES = 3.0


def compare_figure(plans: Sequence[ComparedPlan], *, comparable: bool, by_sample: bool = False) -> Figure:
    """Return the figure of some plans; where their times do not compare, none is drawn as beating another."""
    graphs = [stage_graph(each.plan.costs()) for each in plans]
    end_ns = max(each.longest_ns for each in plans)
    heights = [
        height
        for graph, each in zip(graphs, plans, strict=True)
        for height in (stage_graph_height(graph), _height(each), MEMORY_INCHES)
    ]
    figure, axes = new_figure([*heights, COMPARISON_INCHES + 0.35 * len(plans), PARETO_INCHES])
    for i, (graph, each) in enumerate(zip(graphs, plans, strict=True)):
        plan = each.plan
        title = f"{each.short}: {len(plan.stages)} stages in depth {depth(plan)}, {plan.schedule}"
        names = [stage.name.replace(" .. ", "\n.. ") for stage in plan.stages]
        ranks = [stage.ranks for stage in plan.stages]
        stage_graph_picture(axes[3 * i], graph, captions=names, edge_labels=sizes(plan), title=title, ranks=ranks)
        _timelines(axes[3 * i + 1], each, end_ns)
        limit, title = each.limit_bytes or 0, f"{each.short}, memory"
        memory(axes[3 * i + 2], each.predicted, limit_bytes=limit, title=title, ranks=plan.blocks, end_ns=end_ns)
    comparison(axes[-2], list(map(compared_row, plans)), by_sample=by_sample)
    points = pareto_points(plans)[0]
    pareto(axes[-1], points, limit_bytes=lowest_limit(plans), stairs=comparable, by_sample=by_sample)
    return figure


def sizes(plan: Plan) -> dict[tuple[int, int], str]:
    """Return what each edge sends, for people."""
    return {(edge.source, edge.target): size(edge.size_bytes).replace(" ", "\n") for edge in plan.edges}


def _height(compared: ComparedPlan) -> float:
    """Return a good height in inches for the timelines."""
    if compared.measurement:
        return pair_height(compared.predicted.num_ranks)
    return gantt_height(len(rows_of(compared.predicted)))


def _timelines(ax: Axes, each: ComparedPlan, end_ns: int) -> None:
    if each.measurement:
        note = difference(each.measurement)
        predicted_and_measured(
            ax, each.predicted, each.measurement.measured, title=each.short, note=note, end_ns=end_ns
        )
    else:
        gantt(ax, each.predicted, title=each.short, end_ns=end_ns, ranks=each.plan.blocks)


def compared_row(compared: ComparedPlan) -> ComparedRow:
    """Return a plan's bar of the comparison."""
    measured = compared.measured_timeline
    step_ns, bound_ns, measured_ns = map(
        compared.shared_ns,
        (
            compared.predicted.step_time_ns,
            compared.plan.search.lower_bound_ns or 0,
            measured.step_time_ns if measured else 0,
        ),
    )
    return ComparedRow(compared.short, step_ns, compared.predicted.bubble_ratio, bound_ns, measured_ns)
