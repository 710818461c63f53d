"""What to do: from a problem to a plan, plan file, checker, baselines, report, library and command line.

`planner.plan` and `planner.checker` need the standard library alone; ortools stays in `planner.search`. The names of
the library (`planner.front`) are imported when they are first asked for, so that these two and the command line
start without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from costmodel.machines.cluster import Cluster, read_cluster
    from costmodel.model.profile import Profile, read_profile, write_profile
    from planner.ask.effort import Effort
    from planner.ask.pins import Pins, read_pins
    from planner.ask.problem import Problem
    from planner.ask.space import Space
    from planner.front import compare_plans, make_plan
    from planner.plan import Plan, read_plan, write_plan
    from planner.report.answer import PlanAnswer
    from planner.report.comparison import Comparison

_FROM = {
    "Cluster": "costmodel.machines.cluster",
    "Comparison": "planner.report.comparison",
    "Effort": "planner.ask.effort",
    "Pins": "planner.ask.pins",
    "Plan": "planner.plan",
    "PlanAnswer": "planner.report.answer",
    "Problem": "planner.ask.problem",
    "Profile": "costmodel.model.profile",
    "Space": "planner.ask.space",
    "compare_plans": "planner.front",
    "make_plan": "planner.front",
    "read_cluster": "costmodel.machines.cluster",
    "read_pins": "planner.ask.pins",
    "read_plan": "planner.plan",
    "read_profile": "costmodel.model.profile",
    "write_plan": "planner.plan",
    "write_profile": "costmodel.model.profile",
}

__all__ = [
    "Cluster", "Comparison", "Effort", "Pins", "Plan", "PlanAnswer", "Problem", "Profile", "Space", "compare_plans",
    "make_plan", "read_cluster", "read_pins", "read_plan", "read_profile", "write_plan", "write_profile",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _FROM:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    return getattr(import_module(_FROM[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
