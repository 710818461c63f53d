"""Why a plan was chosen, in the words that its file keeps."""

from planner.answer.ladder import idle_devices
from planner.candidate.evaluate import Evaluated
from planner.search.state.result import SearchOutcome


def _why_preferred(outcome: SearchOutcome, chosen: Evaluated, not_taken: str, unrun: bool) -> str:
    """Say why a plan is chosen that is slower than another."""
    if not_taken:
        return f"taken by --target {outcome.prepared.problem.target}, unlike that"
    if unrun:
        return "a trainer runs it, unlike that"
    tight = outcome.prepared.fits_for_sure(chosen) and not outcome.prepared.fits_for_sure(outcome.pool.best)
    return "it fits, where that may not (--allow-tight prefers that)" if tight else "simpler"


def reason(outcome: SearchOutcome, chosen: Evaluated, not_taken: str, *, unrun: bool) -> str:
    """Say why a plan was chosen, and why it was preferred to a faster one where there is one.

    Parameters
    ----------
    outcome : SearchOutcome
    chosen : Evaluated
    not_taken : str
        Why the target does not take the first choice; empty where it does.
    unrun : bool
        Whether the fastest plan was passed over because no trainer runs it.
    """
    best, text = outcome.pool.best, "the fastest plan found"
    if chosen.step_time_ns > best.step_time_ns:
        preferred = _why_preferred(outcome, chosen, not_taken, unrun)
        slower = 100 * (chosen.step_time_ns / best.step_time_ns - 1)
        text = f"{slower:.2f} % slower than the fastest plan found ({_named(best)}), and {preferred}: {_named(chosen)}"
    idle = idle_devices(outcome.prepared.problem, outcome.pool, chosen)
    return "; ".join(filter(None, (text, idle, _stands_on(chosen))))


def _named(each: Evaluated) -> str:
    number = each.candidate.num_stages
    return f"{each.strategy}, {number} stages, {each.candidate.schedule}" if number > 1 else f"{each.strategy}, 1 stage"


def _stands_on(chosen: Evaluated) -> str:
    """Say which devices the ranks of a plan are that leaves out some before others."""
    used = sorted({rank for place in chosen.candidate.places for rank in place.ranks})
    if used == list(range(len(used))):
        return ""
    return f"its ranks are, in this order, the devices {', '.join(map(str, used))} of the cluster, counted from 0"
