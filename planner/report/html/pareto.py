"""Step time against memory as SVG: the plans, the strategies of their ladders, the limit, what nothing beats in both.

Leaves out which strategies are drawn (`planner.report.summary.points`).
"""

from collections.abc import Sequence
from itertools import pairwise

from costmodel.printing import unit_of
from planner.report.comparison.compared import ComparedPlan
from planner.report.html.elements import Markup, joined, tag
from planner.report.html.scale import round_values
from planner.report.summary.points import SLOWEST, lowest_limit, pareto_points
from planner.report.summary.text import duration, size
from simulator.charts.pareto import ParetoPoint, not_beaten

HEIGHT, TOP, BOTTOM = 300, 16, 40
LEFT, RIGHT = 14, 96
"""Where points lie, in pixels from above and per cent from the left."""


def pareto(plans: Sequence[ComparedPlan], comparable: bool, time: str) -> Markup:
    """Return the picture and the note below it; plans whose times do not compare beat nothing."""
    found, far = pareto_points(plans)
    limit = lowest_limit(plans)
    frame = _Frame(found, limit, time)
    front = frame.front(not_beaten(found)) if comparable else []
    picture = tag("svg", *frame.axes(), *front, *map(frame.dot, found), class_="pareto", height=HEIGHT, width="100%",
                  role="img", aria_label=f"{time} against highest memory of a rank")  # fmt: skip
    notes = [
        "Numbers are plans" + (", small dots other strategies of their ladders." if len(found) > len(plans) else "."),
        *(["The dashed line joins what nothing beats in both."] if front else []),
        *(
            [f"Left out: strategies that take over {SLOWEST} times as long as the quickest plan ({far})."]
            if far
            else []
        ),
    ]
    return joined(picture, tag("p", " ".join(notes), class_="note"))


class _Frame:
    """Where values lie, with some room around them."""

    def __init__(self, found: Sequence[ParetoPoint], limit: int, time: str) -> None:
        self.limit, self.time = limit, time
        self.times = _padded([point.step_ns for point in found])
        self.sizes = _padded([point.peak_bytes for point in found] + ([limit] if limit else []))

    def x(self, step_ns: float) -> str:
        low, high = self.times
        return f"{LEFT + (RIGHT - LEFT) * (step_ns - low) / (high - low):.2f}%"

    def y(self, peak_bytes: float) -> float:
        low, high = self.sizes
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (peak_bytes - low) / (high - low), 1)

    def axes(self) -> list[Markup]:
        """Return grid, figures and the limit."""
        unit, whole = unit_of(self.sizes[1])
        parts = []
        for value in round_values(self.times[0] / 1e6, self.times[1] / 1e6):
            x = self.x(value * 1e6)
            parts += [
                tag("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="grid"),
                tag("text", f"{value:g}", x=x, y=HEIGHT - BOTTOM + 16, text_anchor="middle"),
            ]
        for value in round_values(self.sizes[0] / whole, self.sizes[1] / whole):
            y = self.y(value * whole)
            parts += [
                tag("line", x1=f"{LEFT}%", x2=f"{RIGHT}%", y1=y, y2=y, class_="grid"),
                tag("text", f"{value:g}", x=f"{LEFT}%", dx=-6, y=y, text_anchor="end"),
            ]
        title = f"{self.time}, ms"
        parts.append(tag("text", title, x=f"{RIGHT}%", y=HEIGHT - 6, text_anchor="end", class_="title"))
        parts.append(tag("text", f"highest memory of a rank, {unit}", x=f"{LEFT}%", dx=4, y=8, class_="title"))
        if self.limit:
            y = self.y(self.limit)
            parts.append(tag("line", x1=f"{LEFT}%", x2=f"{RIGHT}%", y1=y, y2=y, class_="limit"))
            parts.append(tag("text", f"limit {size(self.limit)}", x=f"{RIGHT}%", y=y - 8, text_anchor="end"))
        return parts

    def front(self, points: Sequence[ParetoPoint]) -> list[Markup]:
        """Return the stairs from each point to the next."""
        parts = []
        for a, b in pairwise(points):
            ends = (self.x(a.step_ns), self.x(b.step_ns), self.y(a.peak_bytes), self.y(b.peak_bytes))
            parts.append(tag("line", x1=ends[0], x2=ends[1], y1=ends[2], y2=ends[2], class_="front"))
            parts.append(tag("line", x1=ends[1], x2=ends[1], y1=ends[2], y2=ends[3], class_="front"))
        return parts

    def dot(self, point: ParetoPoint) -> Markup:
        """Return a point with what it says when touched."""
        tip = f"{point.text}\n{duration(point.step_ns)}, {size(point.peak_bytes)}"
        x, y = self.x(point.step_ns), self.y(point.peak_bytes)
        if not point.number:
            return tag("circle", cx=x, cy=y, r=4.5, class_="rung" if point.fits else "rung over", data_tip=tip)
        mark = tag("circle", cx=x, cy=y, r=11, class_="plan", data_tip=tip)
        return joined(mark, tag("text", str(point.number), x=x, y=y, text_anchor="middle", class_="number"))


def _padded(values: Sequence[int]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.1 * (high - low) or 0.1 * high or 1.0
    return max(0.0, low - room), high + room
