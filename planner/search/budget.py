"""What a search may take: a deadline on the clock, and what of it is kept for what follows the search.

Work limits decide what is found, so that the same inputs and seed give the same plan; the clock only ends what takes
longer than the user wants to wait, and the result then says so. A plan is lowered, checked and written action by
action, which may take longer than its search: one that could no longer be written within the time limit is not taken,
and the search ends early enough for its best and for the ladder, whose plans are priced as the first plans were and
take about as long as these took; while nothing fits, early enough for one feasibility fix, which looks for the least
memory and plans again. Leaves out how long writing takes elsewhere: the rates are those of one machine.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from costmodel.errors import UsageError
from costmodel.limits import SECONDS_UNANNOUNCED, most
from planner.candidate.evaluate import Evaluated
from planner.plan.orders import MOST_ACTIONS
from planner.question.problem import Problem

PATIENCE = 10
"""With a deterministic limit the clock ends a search only after this many time limits."""
ACTION_S, COPY_S = 45e-6, 3e-6
"""Of an action that is made and checked, and of its copy on each replica that does the same; measured on two cores."""
SPARE_S = 0.4
"""By how much a plan may be late."""
FIXES_S = 9.0
"""Seconds for feasibility fixes: a second for the least memory and two to plan again, for each of three kinds."""


class Deadline:
    """A deadline; `hit` remembers that it ended something.

    Parameters
    ----------
    seconds : float
    """

    def __init__(self, seconds: float) -> None:
        self._start, self._seconds, self._reserved = time.monotonic(), seconds, 0.0
        self._start_cpu_s = time.process_time()
        self.hit = False

    @property
    def remaining_s(self) -> float:
        """Seconds left."""
        return max(0.0, self._seconds - self._reserved - self.taken_s)

    @property
    def taken_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._start

    @property
    def passed_s(self) -> float:
        """Seconds since its end; 0 before."""
        return max(0.0, self.taken_s - self._seconds)

    @property
    def wall_per_cpu(self) -> float:
        """Seconds that a CPU second of this process takes on this machine, at least 1: as seen so far.

        Before anything is seen the process has a core to itself: one such second counts with those that were seen.
        """
        return max(1.0, (1 + self.taken_s) / (1 + time.process_time() - self._start_cpu_s))

    def restart(self, seconds: float) -> None:
        """Set the deadline to this number of seconds from now."""
        self._start, self._start_cpu_s = time.monotonic(), time.process_time()
        self._seconds, self.hit = seconds, False

    def reserve(self, seconds: float) -> None:
        """Reserve this time at the end, in place of what was reserved before."""
        self._reserved = seconds

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        if self.remaining_s <= 0:
            self.hit = True
        return self.hit


@dataclass
class OrderPace:
    """What making an order takes at most for each action of the whole plan, as seen so far."""

    seconds: float = 5e-5

    def allows(self, num_actions: int, limits: Deadline) -> bool:
        """Whether there is time to make the order of this number of actions."""
        return num_actions * self.seconds <= limits.remaining_s

    @contextmanager
    def timed(self, num_actions: int) -> Iterator[None]:
        """Learn from the order that is made meanwhile."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds = max(self.seconds, (time.perf_counter() - start) / num_actions)


@dataclass
class WriteReserve:
    """What of the time limit is left for what follows the search.

    Attributes
    ----------
    problem : Problem
    limits : Deadline
        Of the search, and what follows it.
    first_s : float
        Seconds that the first plans took.
    """

    problem: Problem
    limits: Deadline
    first_s: float = 0.0

    def fits(self, num_actions: int, copies: int) -> bool:
        """Whether a plan could be written if it were taken now; any may where work is counted, not time."""
        return writing_s(num_actions, copies) <= self.most_s

    @property
    def most_s(self) -> float:
        """CPU seconds that writing a plan that is taken now may take at most."""
        if self.problem.effort.deterministic_limit is not None:
            return inf
        return (SPARE_S + self.limits.remaining_s) / self.limits.wall_per_cpu

    def reserve(self, best: Evaluated) -> None:
        """End the search early enough for what follows it."""
        if self.problem.effort.deterministic_limit is not None:
            return
        if best.fits:
            writing = writing_s(best.num_actions, best.copies) * self.limits.wall_per_cpu
            self.limits.reserve(max(0.0, self.first_s + writing - SPARE_S))
        else:
            self.limits.reserve(min(FIXES_S, 2 * self.first_s))


def writing_s(num_actions: int, copies: int) -> float:
    """Return about how long a plan takes to be made, checked and written, s."""
    return num_actions * (ACTION_S + (copies - 1) * COPY_S)


def most_actions() -> int:
    """Return the most actions of a plan that is made."""
    return min(MOST_ACTIONS, most("actions"))


def too_long(num_actions: int, copies: int) -> str:
    """Return why a plan is not made: more actions than there may be, or than any command reads; else nothing."""
    number, allowed = num_actions * copies, most_actions()
    if number <= allowed:
        return ""
    raised = f", or --limit actions={number}: about {writing_s(num_actions, copies):.0f} s" * (number <= MOST_ACTIONS)
    return (
        f"a plan of {number} actions, of which {allowed} are allowed; take larger micro-batches, a smaller --batch or "
        f"fewer stages{raised}"
    )


def check_length(each: Evaluated) -> None:
    """Refuse a plan of too many actions.

    Raises
    ------
    UsageError
        Says how many actions it has, and how many there may be.
    """
    why = too_long(each.num_actions, each.copies)
    if why:
        raise UsageError(why)


def announced(each: Evaluated) -> str:
    """Return what is still to be done for a plan, where that takes long; else nothing."""
    seconds = writing_s(each.num_actions, each.copies)
    if seconds < SECONDS_UNANNOUNCED:
        return ""
    number = each.num_actions * each.copies
    return f"a plan of {number} actions is made, checked and written: about {seconds:.0f} s, for which signals wait"


def clock_s(problem: Problem) -> float:
    """Return the seconds for a search and what follows it."""
    effort = problem.effort
    return patience(problem) * max(0.0, effort.time_limit_s - effort.spent_s)


def patience(problem: Problem) -> int:
    """Return how many times as long as else the clock lets what it may end: 1, but where work is counted."""
    return 1 if problem.effort.deterministic_limit is None else PATIENCE
