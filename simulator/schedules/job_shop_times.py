"""Earliest starts and longest tails of jobs, and the longest path, for given orders of the ranks: plain integers.

The same times as the engine's without messages that occupy something; kept apart because a search asks thousands of
times for small cases, where arrays cost more than they save.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simulator.schedules.job_shop import JobShop


@dataclass(slots=True)
class Timed:
    """Times of the jobs under some orders.

    Attributes
    ----------
    step_ns : int
    start, tail : list of int
        Earliest start; the longest path from the start of a job to the end of the step.
    behind : list of int
        The job behind each on its rank, -1 for the last.
    """

    step_ns: int
    start: list[int]
    tail: list[int]
    behind: list[int]


def timed(jobs: JobShop, sequences: Sequence[Sequence[int]]) -> Timed | None:
    """Time orders; None where they wait on each other."""
    before, behind = _neighbours(jobs, sequences)
    found = in_order(jobs, before, behind)
    if found is None:
        return None
    order, start, step_ns = found
    return Timed(step_ns, start, tails(jobs, order, behind), behind)


def step_of(jobs: JobShop, sequences: Sequence[Sequence[int]]) -> int | None:
    """Return the step of orders; None where they wait on each other."""
    found = in_order(jobs, *_neighbours(jobs, sequences))
    return None if found is None else found[2]


def _neighbours(jobs: JobShop, sequences: Iterable[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return for each job the one before it and the one behind it in its sequence, -1 where there is none."""
    before, behind = [-1] * len(jobs.actions), [-1] * len(jobs.actions)
    for row in sequences:
        for first, second in pairwise(row):
            before[second], behind[first] = first, second
    return before, behind


def in_order(jobs: JobShop, before: list[int], behind: list[int]) -> tuple[list[int], list[int], int] | None:
    """Return the jobs so that each follows what it waits for, their starts, and the step."""
    duration, feeds, after = jobs.duration_ns, jobs.feeds, jobs.after_ns
    waiting = [len(needs) + (b >= 0) for needs, b in zip(jobs.needs, before, strict=True)]
    order = [job for job, number in enumerate(waiting) if not number]
    start, step_ns = [0] * len(waiting), 0
    for job in order:
        end = start[job] + duration[job]
        if end + after[job] > step_ns:
            step_ns = end + after[job]
        for other, delay in feeds[job]:
            if end + delay > start[other]:
                start[other] = end + delay
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
        other = behind[job]
        if other >= 0:
            if end > start[other]:
                start[other] = end
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    return (order, start, step_ns) if len(order) == len(waiting) else None


def tails(jobs: JobShop, order: Sequence[int], behind: Sequence[int]) -> list[int]:
    """Return the longest path from the start of each job to the end of the step."""
    duration, feeds = jobs.duration_ns, jobs.feeds
    tail = list(jobs.after_ns)
    for job in reversed(order):
        longest = tail[job]
        for other, delay in feeds[job]:
            if tail[other] + delay > longest:
                longest = tail[other] + delay
        other = behind[job]
        if other >= 0 and tail[other] > longest:
            longest = tail[other]
        tail[job] = longest + duration[job]
    return tail


def queue_order(jobs: JobShop) -> list[int]:
    """Return the jobs so that each follows what it waits for and what is before it in its queue."""
    return _in_queues(jobs)[0]


def queue_heads(jobs: JobShop) -> list[int]:
    """Return the earliest starts where queues alone are in order."""
    return _in_queues(jobs)[1]


def queue_tails(jobs: JobShop) -> list[int]:
    """Return the tails where queues alone are in order: what urgency is measured by."""
    order, _, behind = _in_queues(jobs)
    return tails(jobs, order, behind)


def _in_queues(jobs: JobShop) -> tuple[list[int], list[int], list[int]]:
    before, behind = _neighbours(jobs, (queue for queues in jobs.queues for queue in queues))
    found = in_order(jobs, before, behind)
    assert found is not None  # noqa: S101 - queues in order of micro-batches wait on nothing behind them
    return found[0], found[1], behind
