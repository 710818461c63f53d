"""From a question to its plan: the planner's outcome, the choice among what it found, and the plan that is made of it.

Leaves out the command line, and how candidates are generated (`planner.search.planners`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.errors import NoPlanFits, UsageError
from costmodel.stages.strategies.amounts import NEVER
from planner.answer.feasibility_fixes import feasibility_fixes
from planner.answer.infeasible import infeasible_error, nothing_found
from planner.answer.ladder import ladder
from planner.answer.reasons import reason
from planner.answer.room import with_room_first
from planner.answer.scope import result, scope
from planner.answer.whole_models import WholeModels
from planner.candidate.evaluate import Evaluated
from planner.candidate.make import make
from planner.plan import Plan
from planner.question.problem import Problem, Report
from planner.question.targets import RUNNERS, default_target, refusal
from planner.search.budget import Deadline, announced, check_length, too_long
from planner.search.planners import PLANNERS
from planner.search.state.record import SearchRecord
from planner.search.state.result import SearchOutcome


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """A plan, and what is known of the search that found it, which no plan file holds."""

    plan: Plan
    record: SearchRecord


def plan(problem: Problem, progress: Report | None = None) -> Plan:
    """Return the plan that the problem's planner finds, as `find` does."""
    return find(problem, progress).plan


def find(problem: Problem, progress: Report | None = None) -> FoundPlan:
    """Return the plan that the problem's planner finds, with the record of its search.

    Parameters
    ----------
    problem : Problem
    progress : callable, optional
        Called with a line of text whenever something better is known.

    Raises
    ------
    UsageError
        For a planner that there is not, or choices that no candidate keeps.
    NoPlanFits
        When nothing that was found is within the memory limit (says which rank is over it, and by how much), or the
        target does not take what was found.
    """
    if problem.planner not in PLANNERS:
        raise UsageError(f"no planner is called {problem.planner!r}; there are {', '.join(PLANNERS)}")
    widened = "" if problem.target else default_target(problem)[1]
    if widened and progress:
        progress(widened)
    effort = problem.effort
    limits = Deadline(effort.time_limit_s - effort.spent_s) if effort.deterministic_limit is None else None
    try:
        return _planned(problem, progress, limits)
    except NoPlanFits as error:
        if problem.planner not in ("ours", "chain"):
            raise
        fixes = feasibility_fixes(problem, lambda changed: _planned(changed).plan, limits)
        raise type(error)(f"{error}{fixes}") from None


def _planned(problem: Problem, progress: Report | None = None, limits: Deadline | None = None) -> FoundPlan:
    outcome = PLANNERS[problem.planner](problem, progress)
    found, record = _chosen(outcome, limits), outcome.pool.record
    record.dropped = outcome.prepared.dropped.counts
    return FoundPlan(found, record)


def _chosen(outcome: SearchOutcome, limits: Deadline | None) -> Plan:
    """Return the plan of the first choice that the target takes, with its ladder."""
    if not outcome.pool.found:
        raise nothing_found(outcome)
    searches = outcome.prepared.problem.planner in ("ours", "chain")
    return _headline(outcome, WholeModels(outcome.prepared, outcome.pool, offers=searches, limits=limits), limits)


MOST_NOT_RUN = 6
"""Plans of several stages that are made to learn that no trainer runs them, before those of one stage alone are."""


def _headline(outcome: SearchOutcome, whole: WholeModels, limits: Deadline | None) -> Plan:
    """Return the first choice that the target takes and that some trainer runs; where none is, the first it takes.

    Those that fit for sure come before those that may not. What a faster one that nobody runs would gain is told in
    the plan (`best_unrun`). Whoever asks for a proof, or for what another planner does, gets just that.
    """
    prepared, pool, old = outcome.prepared, outcome.pool, outcome.old_plan
    problem, not_taken = prepared.problem, ""
    asks_who_runs = problem.planner in ("ours", "chain") and not problem.exact and problem.target not in RUNNERS
    passed_over: list[Evaluated] = []
    num_made = 0
    old_ns = old.never_above_ns if old else None
    choices = pool.choices(old_ns, outcome.baselines.get("chain"))
    for chosen in with_room_first(outcome, choices, limits) if problem.prefers_room else choices:
        if not chosen.fits or (passed_over and old and chosen.step_time_ns > (old.never_above_ns or NEVER)):
            break  # no answer is slower than an old plan that can still be used
        pipelined, looks_on = chosen.candidate.num_stages > 1, bool(passed_over)
        if asks_who_runs and (
            not pool.somebody_may_run(chosen)
            or (looks_on and pipelined and num_made >= MOST_NOT_RUN)
            or (looks_on and too_long(chosen.num_actions, chosen.copies))
        ):
            passed_over.append(chosen)
            continue
        found = _made(outcome, chosen, not_taken, passed_over)
        why = refusal(problem, found) if found else str(prepared.dropped.refused or prepared.dropped.said)
        if found and not why and (found.runs_on or not asks_who_runs):
            return _with_ladder(outcome, chosen, found, whole)
        if found and not why:
            passed_over.append(chosen)
            num_made += pipelined
        not_taken = not_taken or why
    if problem.prefers_room:
        passed_over.sort(key=lambda each: not prepared.fits_for_sure(each))
    for chosen in passed_over:
        found = _made(outcome, chosen, not_taken, ())
        if found:
            return _with_ladder(outcome, chosen, found, whole)
    if prepared.dropped.bugs:
        raise RuntimeError(prepared.dropped.said)
    if not_taken:
        raise NoPlanFits(not_taken)
    raise infeasible_error(outcome, pool.best, scope(prepared))


def _made(outcome: SearchOutcome, chosen: Evaluated, not_taken: str, passed_over: Sequence[Evaluated]) -> Plan | None:
    """Make the plan of a choice, None where it cannot be made.

    Others were preferred to it that the target does not take, or nobody runs.
    """
    check_length(chosen)
    outcome.pool.announce(announced(chosen))
    faster = [each for each in passed_over if each.step_time_ns < chosen.step_time_ns]
    unrun = min(faster, key=lambda each: each.sort_key, default=None)
    found = None
    with outcome.prepared.dropped.candidate():
        found = make(
            outcome.prepared.evaluator(chosen.candidate.microbatch_size),
            chosen.candidate,
            result(outcome, chosen, chosen if not_taken else outcome.pool.best),
            reason(outcome, chosen, not_taken, unrun=outcome.pool.best in passed_over),
        )
    if found is None:
        return None
    best, tight = outcome.pool.best, None
    if best not in passed_over and not not_taken and chosen.step_time_ns > best.step_time_ns:
        tight = None if outcome.prepared.fits_for_sure(best) else best
    told = {
        name: {"step_time_ns": each.step_time_ns, "strategy": each.strategy}
        for name, each in (("best_unrun", unrun), ("best_tight", tight))
        if each
    }
    return replace(found, extra={**found.extra, **told})


def _with_ladder(outcome: SearchOutcome, chosen: Evaluated, found: Plan, whole: WholeModels) -> Plan:
    """Add the ladder, what became of the old plan, and what bugs cost."""
    old, dropped = outcome.old_plan, outcome.prepared.dropped
    rungs = ladder(outcome.prepared, outcome.pool, chosen, found, whole)
    outcome.pool.announce(dropped.said)
    extra = {**({"from": old.to_json()} if old else {}), **({"bugs": dropped.bugs} if dropped.bugs else {})}
    return replace(found, rungs=rungs, extra={**found.extra, **extra})
