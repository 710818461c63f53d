"""The heading of each plan's pictures: its number, its name, a few words."""

from planner.report.comparison.compared import ComparedPlan
from planner.report.html.elements import Markup, tag
from planner.report.summary.text import duration, percent


def heading(kind: str, number: int, name: str, more: str, **attributes: object) -> Markup:
    """Return a plan's number, name and a few words more as an element of a kind."""
    badge = tag("span", str(number), class_="badge")
    return tag(kind, badge, name, tag("span", more, class_="more"), **attributes)


def step_told(compared: ComparedPlan) -> str:
    """Say how long a plan's step takes, and a sample where batches differ, and how much of it ranks idle."""
    step_ns = compared.predicted.step_time_ns
    sample = f", {duration(compared.shared_ns(step_ns))} a sample" if compared.samples > 1 else ""
    return f"{duration(step_ns)}{sample}, idle {percent(compared.predicted.bubble_ratio)}"


def counted(count: int, thing: str) -> str:
    """Return ``1 stage``, ``2 stages``."""
    return f"{count} {thing}{'s' * (count != 1)}"
