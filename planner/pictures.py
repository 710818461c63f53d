"""One figure of several plans: each one's stage graph and timeline on a common time axis, then the comparison."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from planner.plan import Plan
from planner.replay import depth, replay
from simulator.charts import (
    ComparedRow,
    comparison,
    gantt,
    gantt_height,
    new_figure,
    stage_graph_height,
    stage_graph_picture,
)
from simulator.schedule import stage_graph

COMPARISON_INCHES = 0.9
"""Height of the comparison, with this much more for every plan."""


def compare_figure(plans: Sequence[tuple[str, Plan]]) -> Figure:
    """Return the figure of (path, plan) pairs."""
    graphs = [stage_graph(plan.costs()) for _, plan in plans]
    timelines = [replay(plan) for _, plan in plans]
    end_ns = max(timeline.step_time_ns for timeline in timelines)
    heights = [h for g in graphs for h in (stage_graph_height(g), gantt_height(g.num_ranks))]
    figure, axes = new_figure([*heights, COMPARISON_INCHES + 0.35 * len(plans)])
    rows = []
    for i, ((path, plan), timeline) in enumerate(zip(plans, timelines, strict=True)):
        name = Path(path).stem
        title = f"{name}: {len(plan.stages)} stages in depth {depth(plan)}, {plan.schedule}"
        stage_graph_picture(axes[2 * i], graphs[i], title=title)
        gantt(axes[2 * i + 1], timeline, title=name, end_ns=end_ns)
        rows.append(ComparedRow(name, timeline.step_time_ns, timeline.bubble_ratio, plan.search.lower_bound_ns))
    comparison(axes[-1], rows)
    return figure
