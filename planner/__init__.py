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
    from planner.export.job_configs.today import todays_plan
    from planner.front import compare_plans, find_plan, judge, make_plan, memory, model, profile
    from planner.plan import Plan, read_plan, write_plan
    from planner.question.effort import Effort
    from planner.question.pins import Pins, read_pins
    from planner.question.problem import Problem
    from planner.question.space import Space
    from planner.report.comparison.comparison import Comparison
    from planner.report.summary.answer import PlanAnswer

_FROM = {
    "Cluster": "costmodel.machines.cluster",
    "Comparison": "planner.report.comparison.comparison",
    "Effort": "planner.question.effort",
    "Pins": "planner.question.pins",
    "Plan": "planner.plan",
    "PlanAnswer": "planner.report.summary.answer",
    "Problem": "planner.question.problem",
    "Profile": "costmodel.model.profile",
    "Space": "planner.question.space",
    "compare_plans": "planner.front",
    "find_plan": "planner.front",
    "judge": "planner.front",
    "make_plan": "planner.front",
    "memory": "planner.front",
    "model": "planner.front",
    "profile": "planner.front",
    "read_cluster": "costmodel.machines.cluster",
    "read_pins": "planner.question.pins",
    "read_plan": "planner.plan",
    "read_profile": "costmodel.model.profile",
    "todays_plan": "planner.export.job_configs.today",
    "write_plan": "planner.plan",
    "write_profile": "costmodel.model.profile",
}

__all__ = [
    "Cluster", "Comparison", "Effort", "Pins", "Plan", "PlanAnswer", "Problem", "Profile", "Space", "compare_plans",
    "find_plan", "judge", "make_plan", "memory", "model", "profile", "read_cluster", "read_pins", "read_plan",
    "read_profile", "todays_plan", "write_plan", "write_profile",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _FROM:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    return getattr(import_module(_FROM[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
