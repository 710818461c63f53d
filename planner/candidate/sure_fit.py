"""Whether a candidate fits for sure: the upper bound of every rank's memory is within its device.

Leaves out where upper bounds come from (`planner.candidate.upper_memory`).
"""

from planner.candidate.evaluate import Evaluated, Evaluator
from planner.candidate.fit import NO_LIMIT
from planner.candidate.upper_memory import upper_bytes
from planner.plan.fitting import FITS, fitting
from planner.question.problem import Problem


def fits_for_sure(evaluator: Evaluator, each: Evaluated) -> bool:
    """Whether a candidate's upper bound of memory, and the margin asked for, is within every rank's device."""
    problem = evaluator.problem
    if not each.fits or not may_have_room(problem, each):
        return False
    run = evaluator.shortest(each.candidate)
    uppers = upper_bytes(evaluator, each.candidate, run)
    limits = [limit if limit < NO_LIMIT else 0 for limit in evaluator.limits(run)]
    return fitting(run.times.peak_memory_bytes, uppers, limits, problem.memory_margin_bytes) == FITS


def may_have_room(problem: Problem, each: Evaluated) -> bool:
    """Whether what the estimate leaves may hold at least what an allocator wastes of it, and the margin."""
    known = [limit for limit in problem.memory_limits_bytes if limit]
    if not known or each.spare_bytes >= max(known):
        return True
    wasted = problem.training.fragmentation * (min(known) - each.spare_bytes)
    return each.spare_bytes >= wasted + problem.memory_margin_bytes
