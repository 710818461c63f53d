"""What a search may take: a deadline on the clock, and what of it is kept for what follows the search.

Work limits decide what is found, so that the same inputs and seed give the same plan; the clock only ends what takes
longer than the user wants to wait, and the result then says so. A plan is lowered, checked and written action by
action, which may take longer than its search: one that could no longer be written within the time limit is not taken,
and the search ends early enough for its best; while nothing fits, early enough to look for feasibility fixes. Leaves
out how long that takes elsewhere: the rates are those of one machine.
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

SEARCH_PART = 0.92
"""Part of the time limit after which the search ends; the rest is for the plan, its ladder, its check and its file."""
PATIENCE = 10
"""With a deterministic limit the clock ends a search only after this many time limits."""
ACTION_S, COPY_S = 45e-6, 3e-6
"""Of an action that is made and checked, and of its copy on each replica that does the same; measured on two cores."""
SPARE_S = 0.4
"""By how much a plan may be late."""
WRITING_PART = 0.25
"""Most of the time limit that writing may take from the search."""
WAYS_OUT_PART, SEARCH_ALONE_S = 0.5, 2.0
"""Part of the time limit that feasibility fixes have while nothing fits, and seconds that the search has first."""


class Deadline:
    """A deadline; `hit` remembers that it ended something.

    Parameters
    ----------
    seconds : float
    whole : Deadline, optional
        A deadline of which this one has a part of the time: where that one ends early, so does this one.
    """

    def __init__(self, seconds: float, whole: "Deadline | None" = None) -> None:
        self._start, self._seconds, self._reserved, self._whole = time.monotonic(), seconds, 0.0, whole
        self._start_cpu_s = time.process_time()
        self.hit = False

    @property
    def remaining_s(self) -> float:
        """Seconds left."""
        whole = self._whole
        late = self._seconds * whole._reserved / whole._seconds if whole and whole._seconds else self._reserved
        return max(0.0, self._start + self._seconds - late - time.monotonic())

    @property
    def passed_s(self) -> float:
        """Seconds since its end; 0 before."""
        return max(0.0, time.monotonic() - self._start - self._seconds)

    @property
    def wall_per_cpu(self) -> float:
        """Seconds that a CPU second of this process takes on this machine, at least 1: as seen so far.

        Before anything is seen the process has a core to itself: one such second counts with those that were seen.
        """
        passed_s, cpu_s = time.monotonic() - self._start, time.process_time() - self._start_cpu_s
        return max(1.0, (1 + passed_s) / (1 + cpu_s))

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


@dataclass(frozen=True)
class WriteReserve:
    """What of the time limit is left for writing.

    Attributes
    ----------
    problem : Problem
    limits : Deadline
        Of the search, which ends `SEARCH_PART` through the time limit.
    """

    problem: Problem
    limits: Deadline

    def fits(self, num_actions: int, copies: int) -> bool:
        """Whether a plan could be written if it were taken now; any may where work is counted, not time."""
        return writing_s(num_actions, copies) <= self.most_s

    @property
    def most_s(self) -> float:
        """CPU seconds that writing a plan that is taken now may take at most."""
        if self.problem.effort.deterministic_limit is not None:
            return inf
        wall_s = self._spare_s + min(WRITING_PART * self.problem.effort.time_limit_s, self.limits.remaining_s)
        return wall_s / self.limits.wall_per_cpu

    def reserve(self, best: Evaluated) -> None:
        """End the search early enough for what follows it."""
        if self.problem.effort.deterministic_limit is not None:
            return
        if best.fits:
            writing = writing_s(best.num_actions, best.copies) * self.limits.wall_per_cpu
            self.limits.reserve(max(0.0, writing - self._spare_s))
        else:
            self.limits.reserve(WAYS_OUT_PART * max(0.0, self.problem.effort.time_limit_s - SEARCH_ALONE_S))

    @property
    def _spare_s(self) -> float:
        return self.problem.effort.time_limit_s * (1 - SEARCH_PART) + SPARE_S


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
    """Return the seconds after which a search ends, so that the plan can be made within the limit."""
    effort = problem.effort
    return patience(problem) * max(0.0, effort.time_limit_s * SEARCH_PART - effort.spent_s)


def patience(problem: Problem) -> int:
    """Return how many times as long as else the clock lets what it may end: 1, but where work is counted."""
    return 1 if problem.effort.deterministic_limit is None else PATIENCE
