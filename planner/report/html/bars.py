"""Stacked bars as SVG: what the ranks do in a step on the mean, plan by plan, and row by row of one plan.

Bars are as wide as the page lets them be, in per cent. Waits for one stage or another count as one cause. Leaves out
why a cause is what it is (`simulator.bubbles`).
"""

from collections.abc import Iterable, Mapping, Sequence

from planner.report.comparison.compared import ComparedPlan
from planner.report.html.elements import Markup, joined, tag
from planner.report.html.gantt import labels, row_height
from planner.report.summary.text import duration, percent
from simulator import bubbles
from simulator.charts.rows import DrawnRow
from simulator.charts.style import FILLS

WORK, WAITING = "compute", "waiting for a stage"
CAUSES = (bubbles.WARM_UP, bubbles.REDUCTION, bubbles.COMMUNICATION, bubbles.COOL_DOWN, bubbles.IMBALANCE,
          bubbles.OPTIMIZER, WAITING, bubbles.JOIN)  # fmt: skip
"""Causes in the order of the fills that they take."""
WORK_FILL = "#7f9fbf"
BAR_HEIGHT = 26
HATCHES = {
    "/": "M-1 7L7 -1M-4 4L4 -4M2 10L10 2",
    "\\": "M-1 -1L7 7M-4 2L4 10M2 -4L10 4",
    "x": "M-1 7L7 -1M-1 -1L7 7",
    ".": "M2 2h1.4v1.4h-1.4z",
    "+": "M3 0V6M0 3H6",
}


def patterns() -> Markup:
    """Return the fills of causes for the page to refer to."""
    found = []
    for number, (fill, hatch) in enumerate(FILLS):
        lines = [tag("path", d=HATCHES[hatch[0]], stroke="#333", stroke_width=0.8, fill="none")] if hatch else []
        ground = tag("rect", width=6, height=6, fill=fill)
        found.append(
            tag("pattern", ground, *lines, id=f"cause{number}", width=6, height=6, patternUnits="userSpaceOnUse")
        )
    return tag("svg", tag("defs", *found), width=0, height=0, class_="hidden", aria_hidden="true")


def legend(parts: Iterable[str]) -> Markup:
    """Return the legend of the parts that are there."""
    there = set(parts)
    names = [part for part in (WORK, *CAUSES) if part in there]
    return tag("ul", *(tag("li", _sample(name), name) for name in names), class_="legend")


def merged(causes: Mapping[str, int]) -> dict[str, int]:
    """Return the ns of each cause, waits for stages together, without those that are 0."""
    found = dict.fromkeys(CAUSES, 0)
    for cause, time_ns in causes.items():
        found[cause if cause in found else WAITING] += time_ns
    return {cause: time_ns for cause, time_ns in found.items() if time_ns}


def step_bar(compared: ComparedPlan, longest_ns: int) -> Markup:
    """Return a plan's step as one bar: what its ranks do on the mean, the lower bound, what was measured.

    Bars of `longest_ns`, of a step or of a sample as the plans compare, are as wide as the page.
    """
    step_ns, ranks = compared.predicted.step_time_ns, len(compared.plan.orders)
    longest_ns *= compared.samples
    idle = {cause: time_ns / ranks for cause, time_ns in merged(compared.causes).items()}
    bar = _bar({WORK: step_ns - sum(idle.values()), **idle}, step_ns, longest_ns, 4, BAR_HEIGHT - 8)
    marks = []
    if compared.plan.search.lower_bound_ns:
        x = _share(compared.plan.search.lower_bound_ns, longest_ns)
        tip = f"lower bound {duration(compared.plan.search.lower_bound_ns)}"
        marks.append(tag("line", x1=x, x2=x, y1=0, y2=BAR_HEIGHT, class_="bound", data_tip=tip))
    if compared.measurement:
        measured_ns = compared.measurement.measured.step_time_ns
        tip = f"measured {duration(measured_ns)}"
        x = _share(measured_ns, longest_ns)
        marks.append(tag("circle", cx=x, cy=BAR_HEIGHT / 2, r=5, class_="measured", data_tip=tip))
    return tag("svg", bar, *marks, class_="stack", height=BAR_HEIGHT, width="100%", role="img",
               aria_label=f"step of {compared.name} by cause")  # fmt: skip


def idle_by_rank(compared: ComparedPlan, rows: Sequence[DrawnRow]) -> Markup:
    """Return the idle time of each row as a stacked bar, the step its whole width."""
    height = row_height(len(rows))
    causes, step_ns = compared.idle.per_rank, compared.predicted.step_time_ns
    bars = [
        _bar(merged(causes[row.lead]), step_ns, step_ns, place * height + 1, height - 2, row.name)
        for place, row in enumerate(rows)
    ]
    whole = height * len(rows)
    plot = tag("svg", *bars, class_="stack track", height=whole, width="100%", role="img",
               aria_label=f"idle time of each rank of {compared.name}")  # fmt: skip
    beside = tag("svg", *labels(rows, height), class_="names", height=whole, aria_hidden="true")
    return tag("div", beside, plot, class_="chart")


def _bar(parts: Mapping[str, float], whole_ns: int, longest_ns: int, y: int, height: int, name: str = "") -> Markup:
    """Return the parts one behind the other; tips say each one's share of `whole_ns`."""
    found, now = [], 0.0
    for part, time_ns in parts.items():
        share = time_ns / whole_ns if whole_ns else 0.0
        tip = f"{part} {duration(round(time_ns))}, {percent(share)} of the step" + (f"\n{name}" if name else "")
        place = {"x": _share(now, longest_ns), "width": _share(time_ns, longest_ns), "y": y, "height": height}
        found.append(tag("rect", **place, fill=_fill(part), data_tip=tip))
        now += time_ns
    return joined(*found)


def _share(time_ns: float, whole_ns: int) -> str:
    return f"{100 * time_ns / (whole_ns or 1):.3f}%"


def _fill(part: str) -> str:
    return WORK_FILL if part == WORK else f"url(#cause{CAUSES.index(part)})"


def _sample(part: str) -> Markup:
    return tag("svg", tag("rect", width=18, height=12, fill=_fill(part)), width=18, height=12, class_="stack")
