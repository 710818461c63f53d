"""Among the choices those first that fit for sure: the upper bound of every rank's memory is within its device.

Leaves out the search, which goes by the estimate: where nothing that it found fits for sure, the order stays.
"""

import math
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

    The order stays where none is known to fit. Past the time limit only what the ladder shows is looked at, so that no
    rung fits where the chosen plan may not. None is preferred that is slower than an old plan which can still be used.
    What no trainer runs keeps its place, so that whoever asks for a runner learns what it would have gained.
    """
    prepared, old, looked_at = outcome.prepared, outcome.old_plan, 0
    never_above_ns = (old.never_above_ns if old else None) or math.inf
    by_target = prepared.problem.target in RUNNERS
    unrun: list[Evaluated] = []
    tight: list[Evaluated] = []
    shown = {id(each) for each in outcome.pool.rungs()}
    for position, each in enumerate(choices):
        if not (by_target or outcome.pool.somebody_may_run(each)):
            unrun.append(each)
            continue
        if each.step_time_ns <= never_above_ns and may_have_room(prepared.problem, each):
            if looked_at == MOST_LOOKED_AT:
                break
            late = limits is not None and limits.expired
            if looked_at and late and id(each) not in shown:
                tight.append(each)
                continue
            looked_at += 1
            with prepared.dropped.candidate():
                if prepared.fits_for_sure(each):
                    others = [other for other in choices[position:] if not late or id(other) in shown]
                    simplest = _simplest(outcome, each, others, never_above_ns)
                    rest = [other for other in choices[position:] if other is not simplest]
                    return [*unrun, simplest, *tight, *rest]
        tight.append(each)
    return choices


def _simplest(
    outcome: SearchOutcome, fastest: Evaluated, choices: Sequence[Evaluated], never_above_ns: float
) -> Evaluated:
    """Return the simplest choice about as fast as the fastest that fits for sure, and that fits for sure as well.

    Where that one is about as fast as the best of all, choices are in order of simplicity already.
    """
    pool, near = outcome.pool, outcome.prepared.problem.near
    if fastest.step_time_ns <= pool.best.step_time_ns * near:
        return fastest
    most_ns = min(fastest.step_time_ns * near, never_above_ns)
    simpler = [each for each in choices if each.step_time_ns <= most_ns and pool.somebody_may_run(each)]
    for each in sorted(simpler, key=pool.simplicity)[:MOST_LOOKED_AT]:
        with outcome.prepared.dropped.candidate():
            if each is fastest or outcome.prepared.fits_for_sure(each):
                return each
    return fastest
