"""Timelines as SVG: a row for all ranks that are alike, a path for each kind of action of a stage.

Where all rows would be more than `MOST_BARS` bars, every n-th row represents its neighbours, and the note says so.
Leaves out the axis and what zooming adds (`page.js`).
"""

from collections.abc import Sequence

from planner.report.html.elements import Markup, joined, tag
from planner.report.html.scale import TimeScale, in_runs, strokes
from simulator.charts.rows import DrawnRow
from simulator.charts.timeline import LANES, MESSAGES, WORK, Bars, bars_of
from simulator.timeline import Timeline

MOST_BARS = 70_000
"""About 0.7 MiB."""
HEIGHTS = ((8, 24), (20, 18), (48, 14), (96, 12))
"""Pixels of each row, by the number of rows up to which they apply."""
LEAST_HEIGHT = 9


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
    drawn = shown(rows, sum(span.stream in WORK for span in timeline.spans))
    height, spans = row_height(len(drawn)), timeline.spans_by_rank
    streams = (*WORK, *MESSAGES) if messages else WORK
    bars = [
        tag(
            "g", *(_path(bars, height, scale) for bars in bars_of(spans[row.lead], streams)),
            transform=f"translate(0 {place * height})", data_row=row.name,
        )
        for place, row in enumerate(drawn)
    ]  # fmt: skip
    whole = height * len(drawn)
    picture = chart("gantt", labels(drawn, height), bars, whole, scale, name)
    note = f"{len(drawn)} of {len(rows)} rows are drawn, evenly chosen"
    return joined(picture, tag("p", note, class_="note")) if len(drawn) < len(rows) else picture


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
        tag("text", row.name, x="100%", dx=-6, y=round(height * (place + 0.5), 1), text_anchor="end")
        for place, row in enumerate(rows)
        if place % step == 0
    ]


def _path(drawn: Bars, height: int, scale: TimeScale) -> Markup:
    """Return the bars of one kind, stage and stream as one path."""
    action, style, (middle, share) = drawn.spans[0].action, drawn.style, LANES[drawn.stream]
    bars = [(scale.at(span.start_ns), scale.at(span.end_ns), span.action.microbatch) for span in drawn.spans]
    bars = [bar for bar in bars if bar[1] > bar[0]]
    return tag(
        "path",
        class_=f"k{action.kind}",
        d=f"M0 {round(middle * height, 1)}{strokes(bar[:2] for bar in bars)}",
        stroke=drawn.fill,
        stroke_width=round(share * height, 1),
        data_action=f"{action.stage}{action.kind}",
        data_slice=f".{action.slice_index}" if action.slice_index >= 0 else None,
        data_kind=style.name,
        data_ink=style.text,
        data_microbatches=in_runs(bar[2] for bar in bars) if action.microbatch >= 0 else None,
    )
