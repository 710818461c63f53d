"""Gantt pictures: what each rank does when, and a predicted and a measured step on one axis.

A row a rank, or for all ranks that are alike, first on top; a bar an action, with its micro-batch where it fits.
Where a rank has several stages, later ones are darker. Draws only: times come from a `Timeline`. Leaves out links.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from simulator.actions import COMPUTE, Kind
from simulator.charts.rows import MOST_FULL, alike, called, named, rows_inches, standing_for
from simulator.charts.style import (
    AXIS_SHARE,
    EDGE,
    FONT_SIZE,
    OTHER,
    STYLES,
    darker,
    legend_beside,
    milliseconds,
    style_of,
    time_axis,
)
from simulator.timeline import Span, Timeline

LARGEST_DARKENING = 0.25
LABELS_AT_MOST = 4000


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a rank's bars lie: lower edge and height, in rows from the top."""

    bottom: float
    height: float


def gantt_height(num_ranks: int) -> float:
    """Return a good height in inches for a Gantt picture of a number of ranks (rows: `simulator.charts.alike`)."""
    return 0.9 + rows_inches(num_ranks, 3)


def pair_height(num_ranks: int) -> float:
    """Return a good height in inches for a predicted and a measured timeline."""
    return 1.05 + 1.5 * rows_inches(num_ranks, 2)


def gantt(
    ax: Axes,
    timeline: Timeline,
    *,
    title: str = "",
    end_ns: int = 0,
    ranks: Sequence[Sequence[int]] = (),
) -> Axes:
    """Draw a timeline.

    Parameters
    ----------
    ax : Axes
    timeline : Timeline
    title : str
        What it shows; the step time and the bubble are added.
    end_ns : int
        End of the time axis, to compare several pictures; 0 for the end of this timeline.
    ranks : sequence of sequence of int
        Ranks that each rank of the timeline represents (a plan's blocks); by default itself.
    """
    rows = alike(timeline)
    names = [called(standing_for(row, ranks)) for row in rows]
    _frame(ax, names, max(end_ns, timeline.end_ns))
    spans = timeline.spans_by_rank
    for place, (rank, *_) in enumerate(rows):
        own = spans[rank]
        _bars(ax, _of(own, ("compute",)), _Row(place - 0.42, 0.84), _chunks(own))
        collectives = _Row(place - 0.42 + 0.84 - 0.14, 0.14)
        _bars(ax, _of(own, ("collective",)), collectives, {})
        for lane, stream in enumerate(("offload", "reload")):
            _bars(ax, _of(own, (stream,)), _Row(place - 0.42 + 0.09 * lane, 0.09), {})
    summary = f"step {milliseconds(timeline.step_time_ns)}, bubble {timeline.bubble_ratio:.1%}"
    ax.set_title(f"{title}: {summary}" if title else summary, fontsize=FONT_SIZE + 1, loc="left")
    shown = ("compute", "collective", "offload", "reload")
    legend_beside(ax, _samples(span.action.kind for span in timeline.spans if span.stream in shown))
    return ax


def predicted_and_measured(
    ax: Axes, predicted: Timeline, measured: Timeline, *, title: str = "", note: str = "", end_ns: int = 0
) -> Axes:
    """Draw two timelines of one plan on one axis: of each rank the predicted bars above the measured ones.

    Calls that send and waits for messages are thin bars between the measured ones. `note` is a second line below the
    title; `end_ns` the end of the time axis, to compare several pictures (0: the later end of the two).
    """
    num_ranks = max(predicted.num_ranks, measured.num_ranks)
    names = [called((rank,)) for rank in range(num_ranks)]
    _frame(ax, names, max(end_ns, predicted.end_ns, measured.end_ns))
    for lower, timeline in enumerate((predicted, measured)):
        for rank, spans in enumerate(timeline.spans_by_rank):
            row = _Row(rank - 0.42 + 0.42 * lower, 0.4)
            if lower:
                _bars(ax, _of(spans, ("send", "receive")), _Row(row.bottom + 0.13, 0.14), {})
            _bars(ax, _of(spans, ("compute", "collective")), row, _chunks(spans))
            if num_ranks <= MOST_FULL:
                ax.text(
                    0, row.bottom + 0.2, ("predicted ", "measured ")[lower], ha="right", va="center",
                    fontsize=FONT_SIZE - 2,
                )  # fmt: skip
    ax.tick_params(axis="y", pad=46)
    error = predicted.step_time_ns / measured.step_time_ns - 1 if measured.step_time_ns else 0.0
    both = f"predicted {milliseconds(predicted.step_time_ns)}, measured {milliseconds(measured.step_time_ns)}"
    summary = f"{both} ({error:+.1%})" + (f"\n{note}" if note else "")
    ax.set_title(f"{title}: {summary}" if title else summary, fontsize=FONT_SIZE + 1, loc="left")
    legend_beside(ax, _samples(s.action.kind for s in (*_shown(predicted), *measured.spans)))
    return ax


def _shown(timeline: Timeline) -> Iterable[Span]:
    return (span for span in timeline.spans if span.stream in ("compute", "collective"))


def _of(spans: Sequence[Span], streams: Sequence[str]) -> list[Span]:
    return [s for s in spans if s.stream in streams and s.end_ns > s.start_ns]


def _chunks(spans: Sequence[Span]) -> dict[int, float]:
    """Return how much darker each stage of a rank is drawn."""
    stages = sorted({s.action.stage for s in spans if s.action.kind in COMPUTE})
    return {stage: LARGEST_DARKENING * i / max(1, len(stages) - 1) for i, stage in enumerate(stages)}


def _bars(ax: Axes, spans: Sequence[Span], row: _Row, chunks: dict[int, float]) -> None:
    """Draw the bars of one row, one collection a kind and stage."""
    groups: dict[tuple[Kind, int], list[Span]] = {}
    for span in spans:
        groups.setdefault((span.action.kind, span.action.stage if chunks else -1), []).append(span)
    for (kind, stage), members in groups.items():
        style = style_of(kind)
        ax.broken_barh(
            [(s.start_ns / 1e6, (s.end_ns - s.start_ns) / 1e6) for s in members],
            (row.bottom, row.height),
            facecolor=darker(style.fill, chunks.get(stage, 0.0)),
            hatch=style.hatch,
            edgecolor=EDGE,
            linewidth=0.4 if len(spans) < 300 and ax.get_ylim()[0] <= MOST_FULL else 0.0,
        )
    if row.height > 0.3 and len(spans) <= LABELS_AT_MOST and ax.get_ylim()[0] <= MOST_FULL:
        _labels(ax, spans, row)


def _labels(ax: Axes, spans: Sequence[Span], row: _Row) -> None:
    """Write the micro-batch into each bar that is wide enough for it."""
    figure = ax.get_figure(root=True)
    if figure is None:
        return
    points_a_ms = 72 * figure.get_figwidth() * AXIS_SHARE / ax.get_xlim()[1]
    size = FONT_SIZE - (1 if row.height > 0.5 else 2)
    for span in spans:
        text = str(span.action.microbatch) if span.action.microbatch >= 0 else ""
        width = (span.end_ns - span.start_ns) / 1e6 * points_a_ms
        if text and width > 0.62 * size * len(text) + 2:
            style = style_of(span.action.kind)
            box = {"facecolor": style.fill, "edgecolor": "none", "pad": 1.2} if style.hatch else None
            ax.text(
                (span.start_ns + span.end_ns) / 2e6, row.bottom + row.height / 2, text,
                ha="center", va="center_baseline", fontsize=size, color=style.text, bbox=box, clip_on=True,
            )  # fmt: skip


def _frame(ax: Axes, names: Sequence[str], end_ns: int) -> None:
    time_axis(ax, end_ns)
    ax.set_ylim(len(names) - 0.5, -0.5)
    places, shown = named(names)
    ax.set_yticks(places, shown)
    ax.tick_params(axis="y", length=0)
    for place in places:
        ax.axhline(place, color="#bbbbbb", linewidth=0.5, zorder=0)


def _samples(kinds: Iterable[Kind]) -> list[Patch]:
    """Return legend samples of the kinds that are there, each name once."""
    present = set(kinds)
    named = {STYLES[kind].name: STYLES[kind] for kind in STYLES if kind in present}
    others = [OTHER] if present - set(STYLES) else []
    return [style.patch() for style in (*named.values(), *others)]
