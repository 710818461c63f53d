"""Among the choices those first that fit for sure: the upper bound of every rank's memory is within its device.

Leaves out the search, which goes by the estimate: where nothing that it found fits for sure, the order stays.
"""

from collections.abc import Sequence

from planner.candidate.evaluate import Evaluated
from planner.candidate.sure_fit import may_have_room
from planner.question.targets import RUNNERS
from planner.search.budget import Deadline
from planner.search.state.result import SearchOutcome

MOST_LOOKED_AT = 24
"""Choices whose upper bounds are worked out, each of which is simulated once more."""


def with_room_first(
    outcome: SearchOutcome, choices: Sequence[Evaluated], limits: Deadline | None
) -> Sequence[Evaluated]:
    """Return the choices, the first that fits for sure before those that some trainer runs and that may not fit.

    The order stays where none is known to fit. None is preferred that is slower than an old plan which can still be
    used. What no trainer runs keeps its place, so that whoever asks for a runner learns what it would have gained.
    """
    prepared, old, looked_at = outcome.prepared, outcome.old_plan, 0
    by_target = prepared.problem.target in RUNNERS
    unrun: list[Evaluated] = []
    tight: list[Evaluated] = []
    for position, each in enumerate(choices):
        if not (by_target or outcome.pool.somebody_may_run(each)):
            unrun.append(each)
            continue
        too_slow = old and old.never_above_ns and each.step_time_ns > old.never_above_ns
        if not too_slow and may_have_room(prepared.problem, each):
            if looked_at == MOST_LOOKED_AT or (limits and looked_at and limits.expired):
                break
            looked_at += 1
            with prepared.dropped.candidate():
                if prepared.fits_for_sure(each):
                    return [*unrun, each, *tight, *choices[position + 1 :]]
        tight.append(each)
    return choices
