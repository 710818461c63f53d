"""The best orders of jobs that list simulations, given orders and a local search come to, one after the other.

First lists by rules, without and with noise, and the given orders. Then, again and again, a list by the starts of good
orders, somewhat wrong, and some moves of a tabu search from there: a list changes many ranks at once and knows what
memory allows, moves mend what it did not foresee. The numbers of lists and moves follow from the number of jobs, not
from a clock, so that equal input gives equal orders. Ends early at orders that take no longer than a lower bound.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice, product
from random import Random

from simulator.actions import Kind
from simulator.schedules.job_shop import JobShop, Sequences
from simulator.schedules.job_shop_list import Manner, listed
from simulator.schedules.job_shop_search import OrderSearch
from simulator.schedules.job_shop_times import queue_tails, step_of, timed

LISTED, LEAST_LISTS, MOST_LISTS = 12_000, 1, 36
"""Jobs placed by all lists that go by rules, within bounds on their number."""
MANY = 5_000
"""Jobs from which on given orders are quicker to make than lists."""
TIMED = 110_000
"""Jobs timed by local search."""
MOVES, WORSE = 40, 0.01
"""Moves of a tabu search from each list, and by what part of a step those may be longer that are gone on from."""
MANNERS = tuple(Manner(patience, ahead) for patience in (50, 0, 100) for ahead in (False, True))
Found = tuple[int, Sequences]
"""The step of some orders, and the orders."""


def best_orders(
    jobs: JobShop,
    others: Iterable[Callable[[], Sequences | None]],
    enough_ns: int,
    seed: int = 0,
    effort: float = 1.0,
) -> Found | None:
    """Return the best orders that are found, with their step; None where no list gets room.

    Parameters
    ----------
    others : iterable of callable
        Each makes other orders to start from, which may need too much memory.
    enough_ns : int
        A step at which the search ends.
    seed : int
    effort : float
        Part of the usual number of lists and moves.
    """
    number = max(LEAST_LISTS, int(min(MOST_LISTS, LISTED // len(jobs.actions)) * effort))
    lists = (lambda urgency=urgency, manner=manner: listed(jobs, urgency, manner) for urgency, manner in _rules(jobs))
    best: Found | None = None
    some = tuple(islice(lists, number))
    for make in (*others, *some) if len(jobs.actions) > MANY else (*some, *others):
        if best is None or best[0] > enough_ns:
            best = better(jobs, best, make())
    return best and improved(jobs, best, enough_ns, int(TIMED * effort), seed)


def improved(jobs: JobShop, found: Found, enough_ns: int, work: int, seed: int = 0) -> Found:
    """Return what a local search makes of orders.

    Parameters
    ----------
    work : int
        Jobs that are timed.
    """
    rng = Random(seed)  # noqa: S311 - a fixed sequence is what is wanted
    best = now = _searched(jobs, found, enough_ns, min(MOVES, work // len(jobs.actions)), rng)
    left = work - len(jobs.actions) * MOVES
    while best[0] > enough_ns and left >= len(jobs.actions) * MOVES:
        left -= len(jobs.actions) * MOVES
        tried = better(jobs, None, _listed_again(jobs, now[1], rng))
        if tried:
            tried = _searched(jobs, tried, enough_ns, MOVES, rng)
            if tried[0] <= now[0] * (1 + WORSE * rng.random()):
                now = tried
            best = min(best, tried)
    return best


def better(jobs: JobShop, best: Found | None, other: Sequences | None) -> Found | None:
    """Return the better of two orders; the other may need too much memory, or ranks may wait on each other."""
    if other is None or not fits(jobs, other):
        return best
    step_ns = step_of(jobs, other)
    return (step_ns, other) if step_ns is not None and (best is None or step_ns < best[0]) else best


def fits(jobs: JobShop, sequences: Sequences) -> bool:
    """Whether no rank holds more than it has room for."""
    for row, room in zip(sequences, jobs.room, strict=True):
        held = 0
        for job in row:
            held += jobs.take[job]
            if held > room:
                return False
            held -= jobs.free[job]
    return True


def _searched(jobs: JobShop, found: Found, enough_ns: int, num_moves: int, rng: Random) -> Found:
    search = OrderSearch(jobs, found[1], rng)
    search.run(num_moves, enough_ns)
    return search.best_ns, search.best


def _listed_again(jobs: JobShop, sequences: Sequences, rng: Random) -> Sequences | None:
    """List by the starts of orders, wrong by up to some part of the longest job."""
    times = timed(jobs, sequences)
    wrong = rng.choice((0.5, 1.0, 2.0)) * rng.random() * max(jobs.duration_ns)
    starts = times.start if times else []
    urgency = [start + wrong * (2 * rng.random() - 1) for start in starts]
    return listed(jobs, urgency, Manner(rng.choice((-1, -1, 50)), rng.random() < 0.5))


def _rules(jobs: JobShop) -> Iterator[tuple[list[float], Manner]]:
    """Yield urgencies and manners, without end.

    Urgent are backwards before forwards, or what has the longest path behind it.
    """
    tails = queue_tails(jobs)
    late = 2 * (max(tails) + 1)
    by_tail = [-float(tail) for tail in tails]
    backwards = [(late if a.kind is Kind.F else 0) - float(tail) for tail, a in zip(tails, jobs.actions, strict=True)]
    choices = tuple(product((backwards, by_tail), MANNERS))
    yield from choices
    for seed in count(1):
        rng = Random(seed)  # noqa: S311 - a fixed sequence is what is wanted
        wrong = (0.5, 1.5)[seed % 2] * max(jobs.duration_ns)
        noise = [wrong * (2 * rng.random() - 1) for _ in tails]
        for urgency, manner in choices:
            yield [sum(pair) for pair in zip(urgency, noise, strict=True)], manner
