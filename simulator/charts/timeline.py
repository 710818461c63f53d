"""Gantt pictures: what each rank does when, and a predicted and a measured step on one axis.

A row a rank, or for all ranks that are alike, first on top; a bar an action, with its micro-batch where it fits.
Where a rank has several stages, later ones are darker. Draws only: times come from a `Timeline`. Leaves out links.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from simulator.actions import COMPUTE, Kind
from simulator.charts.rows import MOST_FULL, called, named, rows_inches, rows_of
from simulator.charts.style import (
    AXIS_SHARE,
    EDGE,
    FONT_SIZE,
    Style,
    darker,
    legend_beside,
    milliseconds,
    style_of,
    styles_of,
    time_axis,
)
from simulator.timeline import Span, Timeline

LARGEST_DARKENING = 0.25
LABELS_AT_MOST = 4000
WORK, MESSAGES = ("compute", "collective"), ("send", "receive")
SHOWN = (*WORK, "offload", "reload")
LANES = {"send": (0.5, 0.3), "receive": (0.5, 0.3), "compute": (0.5, 0.84), "collective": (0.84, 0.2),
         "offload": (0.12, 0.09), "reload": (0.21, 0.09)}  # fmt: skip
"""Middle and height of each stream's bars, in rows from the top."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of one rank that look alike: the actions of one kind, stage, slice and stream.

    `fill` is darker where the rank has several stages and it is of a later one.
    """

    spans: Sequence[Span]
    fill: str

    @property
    def style(self) -> Style:
        """Of the kind of its actions."""
        return style_of(self.spans[0].action.kind)

    @property
    def stream(self) -> str:
        """A key of `LANES`."""
        return self.spans[0].stream


def bars_of(spans: Sequence[Span], streams: Collection[str]) -> list[Bars]:
    """Return the bars of one rank's streams; those of lanes that others cover come first."""
    groups: dict[tuple[str, str, int, int], list[Span]] = {}
    for span in spans:
        action = span.action
        if span.stream in streams and span.end_ns > span.start_ns:
            groups.setdefault((span.stream, action.kind, action.stage, action.slice_index), []).append(span)
    stages = sorted({s.action.stage for s in spans if s.action.kind in COMPUTE})
    lanes = list(LANES)
    return [
        Bars(members, darker(style_of(members[0].action.kind).fill, LARGEST_DARKENING * _later(stages, stage)))
        for (_, _, stage, _), members in sorted(groups.items(), key=lambda group: lanes.index(group[0][0]))
    ]


def _later(stages: Sequence[int], stage: int) -> float:
    """Return how far behind the first of a rank's stages one is, 1 for the last."""
    return stages.index(stage) / max(1, len(stages) - 1) if stage in stages else 0.0


def gantt_height(num_ranks: int) -> float:
    """Return a good height in inches for a Gantt picture of a number of ranks (`simulator.charts.rows_of`)."""
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
    rows = rows_of(timeline, ranks)
    summary = f"step {milliseconds(timeline.step_time_ns)}, bubble {timeline.bubble_ratio:.1%}"
    _frame(ax, [row.name for row in rows], max(end_ns, timeline.end_ns), f"{title}: {summary}" if title else summary)
    spans = timeline.spans_by_rank
    for place, row in enumerate(rows):
        for bars in bars_of(spans[row.lead], SHOWN):
            middle, height = LANES[bars.stream]
            _draw(ax, bars, place - 0.5 + middle - height / 2, height, len(spans[row.lead]))
    legend_beside(ax, _samples(span.action.kind for span in timeline.spans if span.stream in SHOWN))
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
    error = predicted.step_time_ns / measured.step_time_ns - 1 if measured.step_time_ns else 0.0
    both = f"predicted {milliseconds(predicted.step_time_ns)}, measured {milliseconds(measured.step_time_ns)}"
    summary = f"{both} ({error:+.1%})" + (f"\n{note}" if note else "")
    end_ns = max(end_ns, predicted.end_ns, measured.end_ns)
    _frame(ax, names, end_ns, f"{title}: {summary}" if title else summary)
    for lower, timeline in enumerate((predicted, measured)):
        for rank, spans in enumerate(timeline.spans_by_rank):
            bottom = rank - 0.42 + 0.42 * lower
            for bars in bars_of(spans, (*WORK, *MESSAGES) if lower else WORK):
                place = (bottom + 0.13, 0.14) if bars.stream in MESSAGES else (bottom, 0.4)
                _draw(ax, bars, *place, len(spans))
            if num_ranks <= MOST_FULL:
                ax.text(
                    0, bottom + 0.2, ("predicted ", "measured ")[lower], ha="right", va="center",
                    fontsize=FONT_SIZE - 2,
                )  # fmt: skip
    ax.tick_params(axis="y", pad=46)
    of_work = (span for span in predicted.spans if span.stream in WORK)
    legend_beside(ax, _samples(s.action.kind for s in (*of_work, *measured.spans)))
    return ax


def _draw(ax: Axes, bars: Bars, bottom: float, height: float, crowd: int) -> None:
    """Draw bars that look alike, with their micro-batches where a rank of `crowd` actions leaves room."""
    few = ax.get_ylim()[0] <= MOST_FULL
    ax.broken_barh(
        [(s.start_ns / 1e6, (s.end_ns - s.start_ns) / 1e6) for s in bars.spans],
        (bottom, height),
        facecolor=bars.fill,
        hatch=bars.style.hatch,
        edgecolor=EDGE,
        linewidth=0.4 if crowd < 300 and few else 0.0,
    )
    if height > 0.3 and crowd <= LABELS_AT_MOST and few:
        _labels(ax, bars, bottom + height / 2, FONT_SIZE - (1 if height > 0.5 else 2))


def _labels(ax: Axes, bars: Bars, middle: float, size: float) -> None:
    """Write the micro-batch into each bar that is wide enough for it."""
    figure, style = ax.get_figure(root=True), bars.style
    points_a_ms = 72 * (figure.get_figwidth() if figure else 0) * AXIS_SHARE / ax.get_xlim()[1]
    box = {"facecolor": style.fill, "edgecolor": "none", "pad": 1.2} if style.hatch else None
    for span in bars.spans:
        text = str(span.action.microbatch) if span.action.microbatch >= 0 else ""
        width = (span.end_ns - span.start_ns) / 1e6 * points_a_ms
        if text and width > 0.62 * size * len(text) + 2:
            ax.text(
                (span.start_ns + span.end_ns) / 2e6, middle, text,
                ha="center", va="center_baseline", fontsize=size, color=style.text, bbox=box, clip_on=True,
            )  # fmt: skip


def _frame(ax: Axes, names: Sequence[str], end_ns: int, title: str) -> None:
    time_axis(ax, end_ns, title=title)
    ax.set_ylim(len(names) - 0.5, -0.5)
    places, shown = named(names)
    ax.set_yticks(places, shown)
    ax.tick_params(axis="y", length=0)
    for place in places:
        ax.axhline(place, color="#bbbbbb", linewidth=0.5, zorder=0)


def _samples(kinds: Iterable[Kind]) -> list[Patch]:
    """Return legend samples of the kinds that are there, each name once."""
    return [style.patch() for style in styles_of(kinds)]
