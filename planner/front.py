"""What the commands do, for a notebook or a program: ask, plan, compare; results with tables and pictures.

    from planner import Problem, compare_plans, make_plan, read_profile

    answer = make_plan(Problem(read_profile("profile.json"), None, num_devices=4, global_batch=64))
    answer.table()

Leaves out profiling (`costmodel.profiling`) and reading and writing files, whose functions `planner` offers next to
these.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from planner.answer.decide import find
from planner.checker import check_plan
from planner.plan import Plan
from planner.question.problem import Problem, Report
from planner.report.comparison.compared import ComparedPlan
from planner.report.comparison.comparison import Comparison
from planner.report.summary.answer import PlanAnswer


def make_plan(problem: Problem, progress: Report | None = None) -> PlanAnswer:
    """Plan, and have the independent checker look at what comes out: what ``penstock plan`` does.

    Takes and raises what `planner.search.planners.plan` does, and RuntimeError when the checker refuses the plan, which
    is a bug.
    """
    start = time.perf_counter()
    found = find(problem, progress)
    searched = found.record.to_json()
    problems = check_plan(found.plan, problem.profile.graph)
    if problems:
        raise RuntimeError(f"the checker refuses the plan, which was not written: {problems[0].message}")
    return PlanAnswer(found.plan, problem, time.perf_counter() - start, searched=searched)


def compare_plans(
    plans: Mapping[str, Plan | PlanAnswer], measured: Mapping[str, str | Path] | None = None
) -> Comparison:
    """Put plans side by side: what ``penstock compare`` does.

    Parameters
    ----------
    plans : mapping of str to Plan or PlanAnswer
        By the names that rows and pictures give them.
    measured : mapping of str to path, optional
        Files of measured timelines (``--timeline`` of the executor), by the same names.
    """
    files = measured or {}
    return Comparison(
        tuple(
            ComparedPlan(name, found.plan if isinstance(found, PlanAnswer) else found, files.get(name))
            for name, found in plans.items()
        )
    )
