"""How a rival becomes a planner: it proposes stages for each micro-batch size, and the best that is simulated counts.

Leaves out how proposals are made and simulated (`planner.search.published.proposals`).
"""

from dataclasses import dataclass

from costmodel.errors import LimitReached, NoPlanFits, UsageError
from planner.plan.limited_by import LimitedBy
from planner.question.problem import Problem, Report
from planner.question.targets import default_target
from planner.search.budget import Deadline, clock_s
from planner.search.published.prices import View
from planner.search.published.proposals import Propose, not_taken, proposals
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.state.result import NO_BOUND, SearchOutcome


@dataclass(frozen=True, slots=True)
class Rival:
    """A planner of somebody else.

    Attributes
    ----------
    name : str
    propose : function
    line : bool
        Whether stages work one after the other, tensors passed from stage to stage; else as a graph.
    limit : str
        Its own limit, where that may be why it proposes nothing.
    """

    name: str
    propose: Propose
    line: bool
    limit: str = ""


def search(rival: Rival, problem: Problem, report: Report | None) -> SearchOutcome:
    """Return what a rival finds within the time limit.

    Raises
    ------
    UsageError
        For choices that it does not know.
    NoPlanFits, LimitReached
        When it proposes nothing; within the time limit.
    """
    _check(rival, problem)
    prepared, limits = PreparedProblem(problem), Deadline(clock_s(problem))
    pool = CandidatePool(problem, problem.target or default_target(problem)[0], prepared.layer_alignment, report)
    sizes = problem.microbatch_sizes_of(problem.space.data or 1)
    for number, size in enumerate(sizes):
        if number and limits.expired:
            break
        mine = Deadline(limits.remaining_s / (len(sizes) - number))
        for each in proposals(rival.propose, View(prepared, size), mine, line=rival.line):
            pool.offer(each)
            pool.say(f"{rival.name}, micro-batch size {size}")
    if not pool.found:
        raise (LimitReached if limits.hit else NoPlanFits)(_nothing(rival, prepared, limits))
    limited_by = LimitedBy.TIME_LIMIT if limits.hit else LimitedBy.EXHAUSTED
    return SearchOutcome(prepared, pool, NO_BOUND, {}, limited_by, not limits.hit)


def _check(rival: Rival, problem: Problem) -> None:
    """Refuse what a rival decides itself, or has no word for."""
    wrong = not_taken(problem)
    if wrong:
        raise UsageError(
            f"--planner {rival.name} does not take {', '.join(wrong)}: it chooses the number of stages itself, and "
            "knows replicas, tensor parallelism, ZeRO and recompute; drop it, or take --planner ours or chain"
        )


def _nothing(rival: Rival, prepared: PreparedProblem, limits: Deadline) -> str:
    ended = "had not ended after its part of the time limit" if limits.hit else "proposes no stages"
    why = rival.limit or "by its own estimate none fits into memory, or the batch has too few micro-batches"
    return (
        f"--planner {rival.name} {ended} for {prepared.problem.profile.graph.name} on "
        f"{prepared.problem.num_devices} devices: {why}; allow more time (--time-limit), memory or devices, or take "
        "--planner ours"
    )
