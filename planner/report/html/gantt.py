"""Timelines as SVG: a row for all ranks that are alike, a path for each kind of action of a stage.

Where all rows would be more than `MOST_BARS` bars, every n-th row represents its neighbours, and the note says so.
Leaves out the axis and what zooming adds (`page.js`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.report.html.elements import Markup, joined, tag
from planner.report.html.scale import TimeScale, in_runs, strokes
from simulator.actions import COMPUTE
from simulator.charts.rows import called
from simulator.charts.style import darker, style_of
from simulator.timeline import Span, Timeline

MOST_BARS = 70_000
"""About 0.7 MiB."""
LARGEST_DARKENING = 0.25
HEIGHTS = ((8, 24), (20, 18), (48, 14), (96, 12))
"""Pixels of each row, by the number of rows up to which they apply."""
LEAST_HEIGHT = 9
LANES = {"compute": (0.5, 0.84), "collective": (0.84, 0.2), "send": (0.5, 0.3), "receive": (0.5, 0.3),
         "offload": (0.12, 0.09), "reload": (0.21, 0.09)}  # fmt: skip
"""Middle and height of each stream's bars, in rows."""


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """Ranks that are alike: the first rank of the timeline among them, and the ranks of the plan that it shows."""

    lead: int
    ranks: tuple[int, ...]


def shown(rows: Sequence[DrawnRow], num_bars: int) -> Sequence[DrawnRow]:
    """Return the rows that are drawn: all, or every n-th."""
    return rows[:: max(1, -(-num_bars // MOST_BARS))]


def row_height(num_rows: int) -> int:
    """Return the pixels of a row."""
    return next((height for most, height in HEIGHTS if num_rows <= most), LEAST_HEIGHT)


def gantt(
    timeline: Timeline, rows: Sequence[DrawnRow], scale: TimeScale, name: str, *, messages: bool = False
) -> Markup:
    """Return the picture of a timeline; `messages` draws sends and receives between the bars."""
    drawn = shown(rows, sum(span.stream in ("compute", "collective") for span in timeline.spans))
    height = row_height(len(drawn))
    spans: dict[int, list[Span]] = {row.lead: [] for row in drawn}
    for span in timeline.spans:
        if span.rank in spans and (messages or span.stream in ("compute", "collective")):
            spans[span.rank].append(span)
    bars = [_row(row, place, spans[row.lead], height, scale) for place, row in enumerate(drawn)]
    whole = height * len(drawn)
    note = f"{len(drawn)} of {len(rows)} rows are drawn, evenly chosen" if len(drawn) < len(rows) else ""
    return joined(chart("gantt", labels(drawn, height), bars, whole, scale, name), *_note(note))


def chart(
    kind: str, names: Sequence[str], bars: Sequence[str], height: int, scale: TimeScale, label: str, **more: object
) -> Markup:
    """Return a chart on the common time axis: names at its side, what stretches, and a layer for what does not."""
    inner = tag(
        "svg", *bars, class_="bars", viewBox=f"0 0 {scale.end} {height}", preserveAspectRatio="none", width="100%",
        height=height,
    )  # fmt: skip
    plot = tag("svg", inner, tag("g", class_="over"), class_=f"plot {kind}", height=height, role="img",
               aria_label=label, **more)  # fmt: skip
    beside = tag("svg", *names, class_="names", height=height, aria_hidden="true")
    return tag("div", beside, plot, class_="chart")


def labels(rows: Sequence[DrawnRow], height: int) -> list[Markup]:
    """Return the names at the side of the rows: of all, or of some where they are too low for a letter."""
    step = -(-11 // height)
    return [
        tag("text", called(row.ranks), x="100%", dx=-6, y=round(height * (place + 0.5), 1), text_anchor="end")
        for place, row in enumerate(rows)
        if place % step == 0
    ]


def _row(row: DrawnRow, place: int, spans: Sequence[Span], height: int, scale: TimeScale) -> Markup:
    groups: dict[tuple[str, str, int, int], list[Span]] = {}
    for span in spans:
        action = span.action
        groups.setdefault((action.kind, span.stream, action.stage, action.slice_index), []).append(span)
    stages = sorted({span.action.stage for span in spans if span.action.kind in COMPUTE})
    paths = [_path(members, stages, height, scale) for members in groups.values()]
    return tag("g", *paths, transform=f"translate(0 {place * height})", data_row=called(row.ranks))


def _path(spans: Sequence[Span], stages: Sequence[int], height: int, scale: TimeScale) -> Markup:
    """Return the bars of one kind, stage and stream as one path."""
    first = spans[0]
    action, style = first.action, style_of(first.action.kind)
    middle, share = LANES[first.stream]
    chunk = stages.index(action.stage) / max(1, len(stages) - 1) if action.stage in stages else 0.0
    bars = [(scale.at(span.start_ns), scale.at(span.end_ns), span.action.microbatch) for span in spans]
    bars = [bar for bar in bars if bar[1] > bar[0]]
    return tag(
        "path",
        class_=f"k{action.kind}",
        d=f"M0 {round(middle * height, 1)}{strokes(bar[:2] for bar in bars)}",
        stroke=darker(style.fill, LARGEST_DARKENING * chunk),
        stroke_width=round(share * height, 1),
        data_action=f"{action.stage}{action.kind}",
        data_slice=f".{action.slice_index}" if action.slice_index >= 0 else None,
        data_kind=style.name,
        data_ink=style.text,
        data_microbatches=in_runs(bar[2] for bar in bars) if action.microbatch >= 0 else None,
    )


def _note(text: str) -> list[Markup]:
    return [tag("p", text, class_="note")] if text else []
