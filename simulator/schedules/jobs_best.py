"""The best orders of jobs that list simulations, given orders and a local search come to, one after the other.

The numbers of lists and of moves follow from the number of jobs, not from a clock, so that equal input gives equal
orders. Ends early at orders that take no longer than a lower bound. Nothing is proved otherwise.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from random import Random

from simulator.schedules.jobs import Jobs, Sequences
from simulator.schedules.jobs_list import listed, rules
from simulator.schedules.jobs_search import Search
from simulator.schedules.jobs_times import queue_tails, timed

LISTED, LEAST_LISTS, MOST_LISTS = 12_000, 6, 36
"""Jobs placed by all list simulations, within bounds on their number."""
TIMED, NUM_STARTS = 60_000, 3
"""Jobs timed by local search, and the orders that it starts from."""
PATIENCE, KICK = 60, 10
"""Moves without a shorter step after which orders are changed at random, and by how many moves."""

Found = tuple[int, Sequences]
"""The step of some orders, and the orders."""


def best_orders(
    jobs: Jobs, others: Iterable[Callable[[], Sequences | None]], enough_ns: int, seed: int = 0
) -> Found | None:
    """Return the best orders that are found, with their step; None where no list gets room.

    Parameters
    ----------
    others : iterable of callable
        Each makes other orders to start from, which may need too much memory.
    enough_ns : int
        A step at which the search ends.
    seed : int
    """
    found = Pool(jobs, enough_ns)
    number = min(MOST_LISTS, max(LEAST_LISTS, LISTED // len(jobs.actions)))
    tails = queue_tails(jobs)
    for rule in islice(rules(), number):
        if found.is_open:
            found.add(listed(jobs, tails, rule))
    for make in others:
        if found.is_open:
            found.add(make())
    _search(jobs, found, seed)
    return found.best


def _search(jobs: Jobs, found: "Pool", seed: int) -> None:
    starts = found.ranked[:NUM_STARTS]
    moves = TIMED // len(jobs.actions)
    for number, (_, sequences) in enumerate(starts):
        if not found.is_open or moves < PATIENCE // 4:
            break
        search = Search(jobs, sequences, found.enough_ns, Random(seed + number))  # noqa: S311 - a fixed sequence
        search.run(moves // len(starts), PATIENCE, KICK)
        found.add(search.best)


class Pool:
    """Orders that were found, one for each step."""

    def __init__(self, jobs: Jobs, enough_ns: int) -> None:
        self.jobs, self.enough_ns = jobs, enough_ns
        self._found: dict[int, Sequences] = {}

    @property
    def ranked(self) -> list[Found]:
        """All of them, best first."""
        return sorted(self._found.items())

    @property
    def best(self) -> Found | None:
        """The best one."""
        return min(self._found.items(), default=None)

    @property
    def is_open(self) -> bool:
        """Whether a shorter step is still worth seeking."""
        return not self._found or min(self._found) > self.enough_ns

    def add(self, sequences: Sequences | None) -> None:
        """Keep orders that fit into memory and do not wait on each other."""
        if sequences is not None and fits(self.jobs, sequences) and (times := timed(self.jobs, sequences)):
            self._found.setdefault(times.step_ns, sequences)


def fits(jobs: Jobs, sequences: Sequences) -> bool:
    """Whether no rank holds more than it has room for."""
    for row, room in zip(sequences, jobs.room, strict=True):
        held = 0
        for job in row:
            held += jobs.take[job]
            if held > room:
                return False
            held -= jobs.free[job]
    return True
