"""The page: what the plans come to, their timelines and memory on one axis, time against memory, stages, idle ranks.

`page.css` and `page.js` stand beside this and are put into it, so that it needs no other file and no network. Leaves
out how each picture is drawn.
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from costmodel.files import write_text
from planner.plan.replay import depth
from planner.report.compared import ComparedPlan
from planner.report.comparison import Comparison
from planner.report.html import bars
from planner.report.html.elements import Markup, joined, table, tag
from planner.report.html.gantt import DrawnRow, gantt
from planner.report.html.memory import memory, top_bytes
from planner.report.html.pareto import pareto
from planner.report.html.scale import TimeScale
from planner.report.html.stages import stages
from planner.report.text import Table, milliseconds, percent, size
from simulator.charts.rows import alike, standing_for
from simulator.charts.style import OTHER, STYLES, Style
from simulator.timeline import Timeline

TITLE = "Plans side by side"
MINUS = "\N{MINUS SIGN}"
HOW = (
    "One axis for all. Touch a bar or a curve to read it. Zoom with the buttons, a double click, two fingers, or Ctrl "
    "and the wheel; drag to move."
)
MOST_OPEN = 16
"""Rows up to which the idle time of each is open at once."""

Named = Sequence[tuple[str, ComparedPlan]]


def write_page(path: str | Path, comparison: Comparison) -> None:
    """Write the page of a comparison."""
    named = comparison.named()
    first, *others = comparison.text()
    tables = [part for part in (first, *others) if isinstance(part, Table)]
    body = tag(
        "main",
        tag("h1", TITLE),
        _summary(comparison),
        *(tag("p", part, class_="warning") for part in (first, *others) if isinstance(part, str)),
        tag("section", table(tables[0]), *_marked(comparison)),
        _steps(named),
        tag("section", tag("h2", "Step time and memory"), pareto(named)),
        _timelines(named),
        _parts(named),
        tag("section", tag("h2", "All figures"), *map(table, tables[1:])),
    )
    write_text(path, _document(joined(bars.patterns(), body)))


def _document(body: Markup) -> str:
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<style>
{style}</style>
</head>
<body>
{body}
<div id="tip" role="status" hidden></div>
<script>
{script}</script>
</body>
</html>
"""


def _summary(comparison: Comparison) -> Markup:
    """Say what is compared and which plan is quickest, and which needs least memory."""
    first, named = comparison.plans[0].plan, comparison.named()
    question = f"{first.model_name}, {first.batch.global_size} samples a step"
    if len(named) == 1:
        return tag("p", question, class_="lead")
    quick = min(named, key=lambda each: each[1].predicted.step_time_ns)
    lean = min(named, key=lambda each: max(each[1].plan.prediction.peak_memory_bytes))
    if any({"model", "batch"} & set(comparison.differing(each)) for _, each in named):
        return tag("p", f"{question}, and others", class_="lead")
    time, room = milliseconds(quick[1].predicted.step_time_ns), size(max(lean[1].plan.prediction.peak_memory_bytes))
    answer = f"{quick[0]} is the quickest, {time}, and needs least memory, {room}"
    if quick is not lean:
        answer = f"{quick[0]} is the quickest, {time}; {lean[0]} needs least memory, {room}"
    return tag("p", f"{question}. ", tag("b", f"{answer}."), class_="lead")


def _marked(comparison: Comparison) -> list[Markup]:
    if not any(comparison.differing(each) for each in comparison.plans):
        return []
    return [tag("p", "* answers another question or rests on other assumptions than the first plan (below): the step "
                     "times do not compare", class_="note")]  # fmt: skip


def _steps(named: Named) -> Markup:
    longest = max(
        max(each.predicted.step_time_ns, each.measurement.measured.step_time_ns if each.measurement else 0)
        for _, each in named
    )
    rows = [
        tag(
            "div",
            tag("p", _badge(number), name, tag("span", _told(each), class_="more"), class_="name"),
            bars.step_bar(each, longest),
        )
        for number, (name, each) in enumerate(named, 1)
    ]
    causes = {cause for _, each in named for cause in bars.merged(each.causes)}
    note = "The step of each plan, mean over its ranks; the upright line is the lower bound"
    note += ", the ring what was measured." if any(each.measurement for _, each in named) else "."
    heading = tag("h2", "Where the step goes")
    return tag("section", heading, bars.legend({bars.WORK, *causes}), *rows, tag("p", note, class_="note"))


def _told(compared: ComparedPlan) -> str:
    step_ns, bubble = compared.predicted.step_time_ns, compared.predicted.bubble_ratio
    return f"{milliseconds(step_ns)}, idle {percent(bubble)}"


def _timelines(named: Named) -> Markup:
    measured = [each.measurement.measured for _, each in named if each.measurement]
    scale = TimeScale(max(_end(timeline) for timeline in (*measured, *(each.predicted for _, each in named))))
    limits = [each.limit_bytes for _, each in named]
    top = top_bytes([peak for _, each in named for peak in each.predicted.peak_memory_bytes], limits)
    charts = [_plan(number, name, each, scale, top) for number, (name, each) in enumerate(named, 1)]
    buttons = [
        tag("button", text, type="button", data_do=do, aria_label=label)
        for do, text, label in (("out", MINUS, "zoom out"), ("in", "+", "zoom in"), ("all", "whole step", "whole step"))
    ]
    kinds = {span.action.kind for _, each in named for span in each.predicted.spans if span.stream in _DRAWN}
    kinds |= {span.action.kind for timeline in measured for span in timeline.spans}
    bar = tag("div", tag("ul", *map(_sample, _styles(kinds)), class_="legend"), tag("div", *buttons, class_="buttons"),
              class_="toolbar")  # fmt: skip
    return tag("section", tag("h2", "Timelines and memory"), tag("p", HOW, class_="note"), bar, *charts, id="time",
               data_end=scale.end, data_tick=scale.tick_ns)  # fmt: skip


_DRAWN = ("compute", "collective")


def _styles(kinds: set[object]) -> list[Style]:
    """Return the styles of the kinds that are there, each once."""
    found = {style.name: style for kind, style in STYLES.items() if kind in kinds}
    return [*found.values(), *([OTHER] if kinds - set(STYLES) else [])]


def _sample(style: Style) -> Markup:
    kind = next((str(kind) for kind, each in STYLES.items() if each is style), "")
    line = tag("path", d="M0 6h18", stroke=style.fill, stroke_width=12, class_=f"k{kind}")
    return tag("li", tag("svg", line, width=18, height=12, class_="sample"), style.name)


def _plan(number: int, name: str, each: ComparedPlan, scale: TimeScale, top: int) -> Markup:
    """Return a plan's timelines and memory."""
    predicted = _rows(each.predicted, each.plan.blocks)
    parts = [gantt(each.predicted, predicted, scale, f"timeline of {name}")]
    if each.measurement:
        measured = each.measurement.measured
        label = tag("p", tag("b", "Measured"), f"{milliseconds(measured.step_time_ns)}", class_="keys")
        parts = [tag("p", tag("b", "Predicted"), class_="keys"), *parts, label]
        parts.append(gantt(measured, _rows(measured, ()), scale, f"measured timeline of {name}", messages=True))
    parts.append(memory(each.predicted, predicted, scale, top, each.limit_bytes, name))
    parts.append(
        tag("div", tag("svg", class_="names", height=18), tag("svg", class_="plot axis", height=18), class_="chart")
    )
    title = tag("h3", _badge(number), name, tag("span", _said(each), class_="more"))
    return tag("article", title, *parts)


def _said(each: ComparedPlan) -> str:
    plan = each.plan
    return f"{plan.schedule}, {len(plan.stages)} stages on {len(plan.orders)} ranks, {_told(each)}"


def _rows(timeline: Timeline, blocks: Sequence[Sequence[int]]) -> list[DrawnRow]:
    return [DrawnRow(row[0], tuple(standing_for(row, blocks))) for row in alike(timeline)]


def _parts(named: Named) -> Markup:
    """Return each plan's stage graph and the idle time of its ranks."""
    parts = []
    for number, (name, each) in enumerate(named, 1):
        rows = _rows(each.predicted, each.plan.blocks)
        causes = {cause for row in each.idle.per_rank for cause in bars.merged(row)}
        found = f"{len(each.plan.stages)} stages in depth {depth(each.plan)}"
        idle = joined(bars.legend(causes), bars.idle_by_rank(each, rows))
        rank = tag("details", tag("summary", "Idle time by rank"), idle, open="" if len(rows) <= MOST_OPEN else None)
        parts.append(
            tag("article", tag("h3", _badge(number), name, tag("span", found, class_="more")), stages(each.plan), rank)
        )
    return tag("section", tag("h2", "Stages, and where their ranks idle"), *parts)


def _badge(number: int) -> Markup:
    return tag("span", str(number), class_="badge")


def _end(timeline: Timeline) -> int:
    return max((span.end_ns for span in timeline.spans), default=1)
