"""Rows of orders on flat arrays of numbers, and the times of their jobs, so that they can be compiled.

Every function runs as it is on lists, and compiled on arrays of 64-bit integers with the same results: it uses indices,
whole numbers and plain arithmetic alone, draws its random numbers itself, and calls only what
`simulator.schedules.order_kernels` lists before it. Leaves out how rows are made and improved.
"""

from typing import NamedTuple

Ints = list[int]
Floats = list[float]

NEVER = 1 << 55
"""A time that no step reaches, ns; a hundred times as much is still a 64-bit number."""
MULTIPLIER, MODULUS = 48271, 2147483647
"""Of random numbers (Park and Miller, Random number generators: good ones are hard to find, CACM 31, 1988)."""


class Shop(NamedTuple):
    """The jobs of a step as flat arrays; jobs of a queue have consecutive numbers, and so have queues of a rank.

    Attributes
    ----------
    duration, after, rank, take, free, unit : array of int
        One entry a job, as in `simulator.schedules.job_shop.JobShop`.
    need_at, need, need_delay : array of int
        Where the jobs that each job waits for begin in the other two, which hold their numbers and delays (ns).
    feed_at, feed, feed_delay : array of int
        The same for the jobs that wait for each job.
    queue, queue_at, is_weight : array of int
        Number of each job's queue; the first job of each queue; whether a queue holds weight gradients.
    rank_at, room : array of int
        The first queue of each rank; bytes that it may hold in addition to its static part.
    """

    duration: Ints
    after: Ints
    rank: Ints
    take: Ints
    free: Ints
    unit: Ints
    need_at: Ints
    need: Ints
    need_delay: Ints
    feed_at: Ints
    feed: Ints
    feed_delay: Ints
    queue: Ints
    queue_at: Ints
    is_weight: Ints
    rank_at: Ints
    room: Ints


class Timing(NamedTuple):
    """Times of the jobs under some orders.

    Attributes
    ----------
    start, tail : array of int
        Earliest start; the longest path from the start of a job to the end of the step.
    before, behind : array of int
        The job before and the one behind each on its rank, -1 where there is none.
    order, waiting : array of int
        Jobs in an order in which each follows what it waits for; room for counting.
    """

    start: Ints
    tail: Ints
    before: Ints
    behind: Ints
    order: Ints
    waiting: Ints


def zeros(number: int) -> Ints:
    """Return a row of zeros."""
    return [0] * number


def floats(number: int) -> Floats:
    """Return a row of zeros that are floating-point numbers."""
    return [0.0] * number


def draw(dice: Ints) -> int:
    """Return the next random number from 1 to `MODULUS` - 1."""
    dice[0] = dice[0] * MULTIPLIER % MODULUS
    return dice[0]


def noisy(base: Ints, wrong: float, dice: Ints) -> Floats:
    """Return numbers that are wrong by up to some amount."""
    found = floats(len(base))
    for i in range(len(base)):
        found[i] = base[i] + wrong * (2.0 * draw(dice) / MODULUS - 1.0)
    return found


def timing_for(shop: Shop) -> Timing:
    """Return room for the times of orders."""
    n = len(shop.duration)
    return Timing(zeros(n), zeros(n), zeros(n), zeros(n), zeros(n), zeros(n))


def time_row(shop: Shop, row: Ints, row_at: Ints, at: Timing) -> int:
    """Time orders, rows of ranks one behind the other; return the step in ns, -1 where ranks wait on each other."""
    n = len(shop.duration)
    for r in range(len(row_at) - 1):
        last = -1
        for i in range(row_at[r], row_at[r + 1]):
            job = row[i]
            at.before[job] = last
            if last >= 0:
                at.behind[last] = job
            last = job
        if last >= 0:
            at.behind[last] = -1
    count = 0
    for job in range(n):
        at.start[job] = 0
        waiting = shop.need_at[job + 1] - shop.need_at[job]
        if at.before[job] >= 0:
            waiting += 1
        at.waiting[job] = waiting
        if waiting == 0:
            at.order[count] = job
            count += 1
    step_ns, done = 0, 0
    while done < count:
        job = at.order[done]
        done += 1
        end = at.start[job] + shop.duration[job]
        if end + shop.after[job] > step_ns:
            step_ns = end + shop.after[job]
        for i in range(shop.feed_at[job], shop.feed_at[job + 1]):
            other = shop.feed[i]
            if end + shop.feed_delay[i] > at.start[other]:
                at.start[other] = end + shop.feed_delay[i]
            at.waiting[other] -= 1
            if at.waiting[other] == 0:
                at.order[count] = other
                count += 1
        other = at.behind[job]
        if other >= 0:
            if end > at.start[other]:
                at.start[other] = end
            at.waiting[other] -= 1
            if at.waiting[other] == 0:
                at.order[count] = other
                count += 1
    if count < n:
        return -1
    for i in range(n - 1, -1, -1):
        job = at.order[i]
        longest = shop.after[job]
        for k in range(shop.feed_at[job], shop.feed_at[job + 1]):
            tail = at.tail[shop.feed[k]] + shop.feed_delay[k]
            if tail > longest:
                longest = tail
        other = at.behind[job]
        if other >= 0 and at.tail[other] > longest:
            longest = at.tail[other]
        at.tail[job] = longest + shop.duration[job]
    return step_ns


def rows_at(shop: Shop) -> Ints:
    """Return where each rank's row begins in orders that stand one behind the other."""
    found = zeros(len(shop.rank_at))
    for r in range(len(shop.rank_at)):
        found[r] = shop.queue_at[shop.rank_at[r]]
    return found
