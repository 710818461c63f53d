"""The best orders of jobs that list simulations, given orders and a local search come to, one after the other.

First lists by rules, without and with noise, and the given orders. Then, again and again, a list by the starts of good
orders, somewhat wrong, and some moves of a tabu search from there: a list changes many ranks at once and knows what
memory allows, moves mend what it did not foresee. The step gets shorter only if some run of jobs that follow each other
on one rank, on every longest path, gets another first or last job; so such moves alone are tried: the one whose
estimate is least (Taillard, Parallel taboo search techniques for the job shop scheduling problem, ORSA Journal on
Computing 6, 1994) is made and timed exactly, and not undone for some moves. The numbers of lists and moves follow from
the number of jobs, not from a clock, so that equal input gives equal orders. Ends early at orders that take no longer
than a lower bound.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice, product
from random import Random

from simulator.actions import Kind
from simulator.schedules.job_shop import JobShop, Sequences
from simulator.schedules.job_shop_list import Manner, listed
from simulator.schedules.job_shop_times import ShopArrays
from simulator.schedules.order_timing import MODULUS, Floats, Ints

LISTED, LEAST_LISTS, MOST_LISTS = 12_000, 1, 36
"""Jobs placed by all lists that go by rules, within bounds on their number."""
MANY = 5_000
"""Jobs from which on given orders are quicker to make than lists."""
TIMED = 250_000
"""Jobs timed by local search."""
MOVES, WORSE = 40, 0.01
"""Moves of a tabu search from each list, and by what part of a step those may be longer that are gone on from."""
MANNERS = tuple(Manner(patience, ahead) for patience in (50, 0, 100) for ahead in (False, True))
Found = tuple[int, Sequences]
"""The step of some orders, and the orders."""
Row = tuple[int, Ints]
"""The same, all ranks in one row."""


def best_orders(
    jobs: JobShop,
    others: Iterable[Callable[[], Sequences | None]],
    enough_ns: int,
    seed: int = 0,
    effort: float = 1.0,
) -> tuple[Found, ...]:
    """Return the best orders that are found, with their step, and those that local search started from.

    There are none where no list gets room.

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
    shop = ShopArrays(jobs)
    number = max(LEAST_LISTS, int(min(MOST_LISTS, LISTED // len(jobs.actions)) * effort))
    lists = (partial(listed, shop, urgency, manner) for urgency, manner in _rules(shop))
    given = (partial(_given, shop, make) for make in others)
    best: Row | None = None
    some = tuple(islice(lists, number))
    for make in (*given, *some) if len(jobs.actions) > MANY else (*some, *given):
        if best is None or best[0] > enough_ns:
            best = _better(shop, best, make())
    if best is None:
        return ()
    step_ns, row = _improved(shop, best, enough_ns, int(TIMED * effort), seed)
    return (step_ns, shop.sequences(row)), (best[0], shop.sequences(best[1]))


def improved(jobs: JobShop, found: Found, enough_ns: int, work: int, seed: int = 0) -> Found:
    """Return what a local search makes of orders.

    Parameters
    ----------
    work : int
        Jobs that are timed.
    """
    shop = ShopArrays(jobs)
    step_ns, row = _improved(shop, (found[0], shop.row(found[1])), enough_ns, work, seed)
    return step_ns, shop.sequences(row)


def better(jobs: JobShop, best: Found | None, other: Sequences | None) -> Found | None:
    """Return the better of two orders; the other may need too much memory, or ranks may wait on each other."""
    if other is None or not fits(jobs, other):
        return best
    shop = ShopArrays(jobs)
    step_ns = shop.step_ns(shop.row(other))
    return (step_ns, other) if step_ns >= 0 and (best is None or step_ns < best[0]) else best


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


def _given(shop: ShopArrays, make: Callable[[], Sequences | None]) -> Ints | None:
    sequences = make()
    return shop.row(sequences) if sequences and fits(shop.jobs, sequences) else None


def _better(shop: ShopArrays, best: Row | None, row: Ints | None) -> Row | None:
    """Return the better of two orders that fit; ranks may wait on each other in the second."""
    if row is None:
        return best
    step_ns = shop.step_ns(row)
    return (step_ns, row) if step_ns >= 0 and (best is None or step_ns < best[0]) else best


def _improved(shop: ShopArrays, found: Row, enough_ns: int, work: int, seed: int) -> Row:
    rng = Random(seed)  # noqa: S311 - a fixed sequence is what is wanted
    dice, num_jobs = shop.ints(_dice(rng)), shop.num_jobs
    best = now = _searched(shop, found, enough_ns, min(MOVES, work // num_jobs), dice)
    left = work - num_jobs * MOVES
    while best[0] > enough_ns and left >= num_jobs * MOVES:
        left -= num_jobs * MOVES
        tried = _better(shop, None, _listed_again(shop, now[1], rng, dice))
        if tried:
            tried = _searched(shop, tried, enough_ns, MOVES, dice)
            if tried[0] <= now[0] * (1 + WORSE * rng.random()):
                now = tried
            best = tried if tried[0] < best[0] else best
    return best


def _searched(shop: ShopArrays, found: Row, enough_ns: int, num_moves: int, dice: Ints) -> Row:
    row = shop.ints(found[1])  # a copy
    return int(shop.kernels.search_row(shop.arrays, row, num_moves, enough_ns, dice)), row


def _listed_again(shop: ShopArrays, row: Ints, rng: Random, dice: Ints) -> Ints | None:
    """List by the starts of orders, wrong by up to some part of the longest job."""
    shop.step_ns(row)
    wrong = rng.choice((0.5, 1.0, 2.0)) * rng.random() * max(shop.jobs.duration_ns)
    urgency = shop.kernels.noisy(shop.times.start, wrong, dice)
    return listed(shop, urgency, Manner(rng.choice((-1, -1, 50)), rng.random() < 0.5))


def _rules(shop: ShopArrays) -> Iterator[tuple[Floats, Manner]]:
    """Yield urgencies and manners, without end.

    Urgent are backwards before forwards, or what has the longest path behind it.
    """
    shop.time_queues()
    tails, actions = list(map(int, shop.times.tail)), shop.jobs.actions
    late = 2 * (max(tails) + 1)
    by_tail = shop.ints([-tail for tail in tails])
    backwards = [(late if a.kind is Kind.F else 0) - tail for tail, a in zip(tails, actions, strict=True)]
    choices = tuple(product((shop.ints(backwards), by_tail), MANNERS))
    longest = max(shop.jobs.duration_ns)
    for seed in count(0):
        wrong = (0.5, 1.5)[seed % 2] * longest if seed else 0.0
        dice = _dice(Random(seed))  # noqa: S311 - a fixed sequence is what is wanted
        for base, manner in choices:
            yield shop.kernels.noisy(base, wrong, shop.ints(dice)), manner


def _dice(rng: Random) -> list[int]:
    """Return a start of the random numbers that kernels draw."""
    return [1 + rng.randrange(MODULUS - 1)]
