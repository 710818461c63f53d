"""Pictures of timelines, memory, idle time, comparisons and stage graphs: an `ax` in, the same `ax` out.

Nothing here computes what it draws. `new_figure` makes axes without pyplot, `save_figure` writes them; the
same content gives the same bytes. Each kind of picture has its own module.
"""

from matplotlib.figure import Figure

from simulator.charts_graph import stage_graph_height, stage_graph_picture
from simulator.charts_measures import ComparedRow, bubbles, comparison, memory
from simulator.charts_style import new_figure, save_figure
from simulator.charts_timeline import gantt, gantt_height, predicted_and_measured
from simulator.timeline import Timeline

__all__ = [
    "ComparedRow",
    "bubbles",
    "comparison",
    "gantt",
    "gantt_height",
    "memory",
    "new_figure",
    "predicted_and_measured",
    "save_figure",
    "stage_graph_height",
    "stage_graph_picture",
    "timeline_figure",
]

MEMORY_INCHES = 2.2


def timeline_figure(
    timeline: Timeline, title: str = "", limit_bytes: int | None = None, *, communication: bool = False
) -> Figure:
    """Return a figure of a timeline: its Gantt picture, and below it memory over time where that is known."""
    with_memory = any(timeline.memory)
    heights = [gantt_height(timeline.num_ranks), *([MEMORY_INCHES] if with_memory else [])]
    figure, axes = new_figure(heights)
    gantt(axes[0], timeline, title=title, communication=communication)
    if with_memory:
        memory(axes[1], timeline, limit_bytes=limit_bytes or 0)
    return figure
