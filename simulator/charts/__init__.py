"""Pictures of timelines, memory, idle time, comparisons and stage graphs: an `ax` in, the same `ax` out.

Nothing here computes what it draws. `new_figure` makes axes without pyplot, `save_figure` writes them; the
same content gives the same bytes. Each kind of picture has its own module.
"""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from simulator.charts.measures import ComparedRow, bubbles, bubbles_height, comparison, memory
from simulator.charts.memory_terms import memory_by_term
from simulator.charts.pareto import ParetoPoint, not_beaten, pareto
from simulator.charts.rows import rows_of
from simulator.charts.schedules import CURVES_INCHES, schedule_curves
from simulator.charts.stage_graph import stage_graph_height, stage_graph_picture, stage_places
from simulator.charts.style import new_figure, save_figure
from simulator.charts.timeline import gantt, gantt_height, pair_height, predicted_and_measured
from simulator.timeline import Timeline

__all__ = [
    "CURVES_INCHES",
    "MEMORY_INCHES",
    "ComparedRow",
    "ParetoPoint",
    "bubbles",
    "bubbles_height",
    "comparison",
    "gantt",
    "gantt_height",
    "memory",
    "memory_by_term",
    "new_figure",
    "not_beaten",
    "pair_height",
    "pareto",
    "predicted_and_measured",
    "rows_of",
    "save_figure",
    "schedule_curves",
    "stage_graph_height",
    "stage_graph_picture",
    "stage_places",
    "timeline_figure",
]

MEMORY_INCHES = 2.2


def timeline_figure(
    timeline: Timeline,
    title: str = "",
    limit_bytes: int | None = None,
    *,
    share_bytes: int = 0,
    causes: Sequence[Mapping[str, int]] = (),
    ranks: Sequence[Sequence[int]] = (),
    terms: Sequence[Mapping[str, int]] = (),
) -> Figure:
    """Return a figure of a timeline: Gantt picture, memory over time where known, idle time by cause where given.

    The fullest rank's memory is drawn by term, too, where its terms are given.

    Parameters
    ----------
    timeline : Timeline
    title : str
    limit_bytes : int, optional
        Memory that a rank may hold.
    share_bytes : int
        Bytes that represent one activation share, when memory is counted in those; else 0.
    causes : sequence of mapping of str to int
        For each rank the idle ns of each cause.
    ranks : sequence of sequence of int
        As `gantt` takes them.
    terms : sequence of mapping of str to int
        For each rank the bytes that it holds all the time, by term.
    """
    with_memory, by_term = any(timeline.memory), any(timeline.memory) and any(terms)
    rows = rows_of(timeline, ranks)
    heights = [gantt_height(len(rows)), *[MEMORY_INCHES] * (with_memory + by_term)]
    figure, axes = new_figure([*heights, *([bubbles_height(len(rows))] if causes else [])])
    gantt(axes[0], timeline, title=title, ranks=ranks)
    if with_memory:
        memory(axes[1], timeline, limit_bytes=limit_bytes or 0, share_bytes=share_bytes, ranks=ranks)
    if by_term:
        fullest = timeline.peak_memory_bytes.index(max(timeline.peak_memory_bytes))
        name = next(row.name for row in rows if row.lead == fullest)
        memory_by_term(axes[2], timeline, fullest, terms[fullest], called=name)
    if causes:
        bubbles(axes[-1], {row.name: causes[row.lead] for row in rows})
    return figure
