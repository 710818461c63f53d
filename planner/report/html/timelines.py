"""All timelines and the memory under each, on one axis of time, with the legend and the buttons that zoom.

Leaves out how bars and curves are drawn.
"""

from collections.abc import Sequence

from planner.report.comparison.compared import ComparedPlan
from planner.report.html.elements import Markup, tag
from planner.report.html.gantt import gantt
from planner.report.html.headings import counted, heading, step_told
from planner.report.html.memory import memory, top_bytes
from planner.report.html.scale import TimeScale
from planner.report.summary.text import duration
from simulator.actions import Kind
from simulator.charts.rows import rows_of
from simulator.charts.style import STYLES, Style, styles_of
from simulator.charts.timeline import WORK

MINUS = "\N{MINUS SIGN}"
HOW = (
    "One axis for all. Touch a bar or a curve to read it. Zoom with the buttons, a double click, two fingers, or Ctrl "
    "and the wheel; drag to move."
)


def timelines(plans: Sequence[ComparedPlan]) -> Markup:
    """Return the section."""
    measured = [each.measurement.measured for each in plans if each.measurement]
    scale = TimeScale(max(timeline.end_ns for timeline in (*measured, *(each.predicted for each in plans))))
    limits = [each.limit_bytes for each in plans]
    top = top_bytes([peak for each in plans for peak in each.predicted.peak_memory_bytes], limits)
    charts = [_plan(number, each, scale, top) for number, each in enumerate(plans, 1)]
    buttons = [
        tag("button", text, type="button", data_do=do, aria_label=label)
        for do, text, label in (("out", MINUS, "zoom out"), ("in", "+", "zoom in"), ("all", "whole step", "whole step"))
    ]
    kinds: set[Kind] = {span.action.kind for each in plans for span in each.predicted.spans if span.stream in WORK}
    kinds |= {span.action.kind for timeline in measured for span in timeline.spans}
    legend = tag("ul", *map(_sample, styles_of(kinds)), class_="legend")
    bar = tag("div", legend, tag("div", *buttons, class_="buttons"), class_="toolbar")
    return tag("section", tag("h2", "Timelines and memory"), tag("p", HOW, class_="note"), bar, *charts, id="time",
               data_end=scale.end, data_tick=scale.tick_ns)  # fmt: skip


def _sample(style: Style) -> Markup:
    kind = next((str(kind) for kind, each in STYLES.items() if each is style), "")
    line = tag("path", d="M0 6h18", stroke=style.fill, stroke_width=12, class_=f"k{kind}")
    return tag("li", tag("svg", line, width=18, height=12, class_="sample"), style.name)


def _plan(number: int, each: ComparedPlan, scale: TimeScale, top: int) -> Markup:
    """Return a plan's timelines and memory."""
    name, predicted = each.short, rows_of(each.predicted, each.plan.blocks)
    parts = [gantt(each.predicted, predicted, scale, f"timeline of {name}")]
    if each.measurement:
        measured = each.measurement.measured
        label = tag("p", tag("b", "Measured"), f"{duration(measured.step_time_ns)}", class_="keys")
        parts = [tag("p", tag("b", "Predicted"), class_="keys"), *parts, label]
        parts.append(gantt(measured, rows_of(measured), scale, f"measured timeline of {name}", messages=True))
    parts.append(memory(each.predicted, predicted, scale, top, each.limit_bytes, name))
    parts.append(
        tag("div", tag("svg", class_="names", height=18), tag("svg", class_="plot axis", height=18), class_="chart")
    )
    plan = each.plan
    where = f"{counted(len(plan.stages), 'stage')} on {counted(len(plan.orders), 'rank')}"
    return tag("article", heading("h3", number, name, f"{plan.schedule}, {where}, {step_told(each)}"), *parts)
