"""Among the choices those first that fit for sure: the upper bound of every rank's memory is within its device.

Leaves out the search, which goes by the estimate: where nothing that it found fits for sure, the order stays.
"""

from collections.abc import Sequence

from planner.candidate.evaluate import Evaluated
from planner.candidate.fit import NO_LIMIT
from planner.candidate.upper_memory import upper_bytes
from planner.plan.fitting import FITS, fitting
from planner.question.targets import RUNNERS
from planner.search.budget import Deadline
from planner.search.state.prepared import PreparedProblem
from planner.search.state.result import SearchOutcome

MOST_LOOKED_AT = 24
"""Choices whose upper bounds are worked out, each of which is simulated once more."""


def fits_for_sure(prepared: PreparedProblem, each: Evaluated) -> bool:
    """Whether a candidate's upper bound of memory, and the margin asked for, is within every rank's device."""
    if not each.fits or not _may_have_room(prepared, each):
        return False
    evaluator = prepared.evaluator(each.candidate.microbatch_size)
    run = evaluator.shortest(each.candidate)
    uppers = upper_bytes(evaluator, each.candidate, run)
    limits = [limit if limit < NO_LIMIT else 0 for limit in evaluator.limits(run)]
    return fitting(run.times.peak_memory_bytes, uppers, limits, prepared.problem.memory_margin_bytes) == FITS


def with_room_first(
    outcome: SearchOutcome, choices: Sequence[Evaluated], limits: Deadline | None
) -> Sequence[Evaluated]:
    """Return the choices, the first that fits for sure before all; the order that they have where none is known to.

    None comes first that is slower than an old plan which can still be used; those that no trainer runs stay before it,
    to be passed over.
    """
    prepared, old, looked_at = outcome.prepared, outcome.old_plan, 0
    by_target = prepared.problem.target in RUNNERS
    unrun: list[Evaluated] = []
    tight: list[Evaluated] = []
    for position, each in enumerate(choices):
        runs = by_target or outcome.pool.somebody_may_run(each)
        too_slow = old and old.never_above_ns and each.step_time_ns > old.never_above_ns
        if runs and not too_slow and _may_have_room(prepared, each):
            if looked_at == MOST_LOOKED_AT or (limits and looked_at and limits.expired):
                break
            looked_at += 1
            with prepared.dropped.candidate():
                if fits_for_sure(prepared, each):
                    return [*unrun, each, *tight, *choices[position + 1 :]]
        (tight if runs else unrun).append(each)
    return choices


def _may_have_room(prepared: PreparedProblem, each: Evaluated) -> bool:
    """Whether what the estimate leaves may hold at least what an allocator wastes of it, and the margin."""
    problem = prepared.problem
    known = [limit for limit in problem.memory_limits_bytes if limit]
    if not known or each.spare_bytes >= max(known):
        return True
    wasted = problem.training.fragmentation * (min(known) - each.spare_bytes)
    return each.spare_bytes >= wasted + problem.memory_margin_bytes
