"""Whether a candidate fits for sure: the upper bound of every rank's memory is within its device.

Leaves out where upper bounds come from (`planner.candidate.upper_memory`).
"""

from planner.candidate.evaluate import Evaluated, Evaluator
from planner.candidate.fit import NO_LIMIT
from planner.candidate.upper_memory import upper_bytes
from planner.question.problem import Problem


def filled(evaluator: Evaluator, each: Evaluated) -> float:
    """Return the part of its device that a candidate's fullest rank fills at most, the margin asked for included."""
    problem = evaluator.problem
    run = evaluator.shortest(each.candidate)
    uppers = upper_bytes(evaluator, each.candidate, run)
    parts = zip(uppers, evaluator.limits(run), strict=True)
    return max((upper + problem.memory_margin_bytes) / limit if limit < NO_LIMIT else 0.0 for upper, limit in parts)


def may_have_room(problem: Problem, each: Evaluated) -> bool:
    """Whether what the estimate leaves may hold at least what an allocator wastes of it, and the margin."""
    known = [limit for limit in problem.memory_limits_bytes if limit]
    if not known or each.spare_bytes >= max(known):
        return True
    wasted = problem.training.fragmentation * (min(known) - each.spare_bytes)
    return each.spare_bytes >= wasted + problem.memory_margin_bytes
