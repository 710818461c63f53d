"""Events on streams, and the earliest time at which each can start.

Events of one stream follow each other; besides, an event may wait for *arrivals*: for another event's
end (or start) plus a delay. Start times are then longest paths. Two facts make them quick to find.
Only events with arrivals can start later than the event before them ends, so they alone ("heads") are
solved for; and with the clock of a stream (the time it would show if it never waited) the unknown of a
head is the idle time up to it, which is the larger of that of the head before it and that of its
arrival. An event with several arrivals becomes several heads. Heads are numbered by level: a level
needs lower levels only, and is one vector operation. Times are integers, the result is exact.

Leaves out what events mean and what they cost: durations and delays come as arrays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.engine.order_arrays import Bools, Ints

_NEVER = -(1 << 61)


class Deadlock(Exception):
    """Events that wait on each other.

    Attributes
    ----------
    blocked : sequence of int
        The first event of each stream that can never start.
    """

    def __init__(self, blocked: Sequence[int]) -> None:
        super().__init__(blocked)
        self.blocked = blocked


@dataclass(frozen=True, slots=True, eq=False)
class InputRows:
    """What events wait for besides their stream; every array has one entry an arrival.

    Attributes
    ----------
    source, target : arrays of int64
        The event that is waited for, and the one that waits.
    """

    source: Ints
    target: Ints


class EventGraph:
    """The fixed part of a simulation: which event waits for which.

    Parameters
    ----------
    first : array of bool, one entry an event
        Whether the event is the first of its stream. Events of a stream are adjacent, in order.
    arrivals : InputRows

    Raises
    ------
    Deadlock
        When events wait on each other.
    """

    num_events: int
    arrival_of: Ints
    """Index of the arrival at each head; one behind the last where there is none."""

    def __init__(self, first: Bools, arrivals: InputRows) -> None:
        self.num_events = len(first)
        order = np.argsort(arrivals.target, kind="stable")
        degree = np.bincount(arrivals.target, minlength=self.num_events) + first
        last_head = np.cumsum(degree) - 1
        self._num_heads = int(last_head[-1]) + 1
        event = np.repeat(np.arange(self.num_events), degree)
        opens = np.zeros(self._num_heads, np.bool_)
        opens[last_head[first] - degree[first] + 1] = True
        waits = np.flatnonzero(~opens)
        wanted = np.full(self._num_heads, self._num_heads)
        wanted[waits] = last_head[arrivals.source[order]]
        leaves = np.zeros(self._num_heads, np.int64)
        leaves[waits] = arrivals.source[order] + 1
        delay = np.full(self._num_heads, len(order))
        delay[waits] = order
        level = self._levels(opens, wanted, event)
        by_level = np.argsort(level, kind="stable")
        self._number(by_level, level, wanted, opens)
        self._head_of = self._new[last_head]
        self._event, self._leaves, self.arrival_of = event[by_level], leaves[by_level], delay[by_level]
        self._arrivals = arrivals
        self._workspaces: dict[int, _Workspace] = {}

    def _levels(self, opens: Bools, wanted: Ints, event: Ints) -> Ints:
        """Take from each stream, again and again, the next head if what it waits for was taken before."""
        at = np.flatnonzero(opens)
        stop = np.append(at[1:], self._num_heads)
        taken = np.zeros(self._num_heads + 1, np.bool_)
        taken[-1] = True
        level = np.zeros(self._num_heads, np.int64)
        current, left = 0, self._num_heads
        while left:
            ready = taken.take(wanted.take(at))
            heads = at[ready]
            if not len(heads):
                raise Deadlock([int(event[head]) for head in at])
            level[heads] = current
            taken[heads] = True
            at[ready] += 1
            left -= len(heads)
            current += 1
            open_streams = at < stop
            if not open_streams.all():
                at, stop = at[open_streams], stop[open_streams]
        return level

    def _number(self, by_level: Ints, level: Ints, wanted: Ints, opens: Bools) -> None:
        """Give heads numbers by level; per level list the heads before them, then those that they wait for."""
        num_heads = self._num_heads
        self._new = np.empty(num_heads + 1, np.int64)
        self._new[by_level] = np.arange(num_heads)
        self._new[num_heads] = num_heads
        self._before = before = self._new[by_level - 1]
        before[opens[by_level]] = num_heads + 1
        sizes = np.bincount(level)
        self._bounds = np.concatenate([[0], np.cumsum(sizes)])
        place = np.arange(num_heads) + np.repeat(self._bounds[:-1], sizes)
        self._inputs = np.empty(2 * num_heads, np.intp)
        self._inputs[place] = before
        self._inputs[place + np.repeat(sizes, sizes)] = self._new[wanted[by_level]]

    def solve(self, durations: Ints, delays: Ints) -> "Solution":
        """Return the earliest times.

        Parameters
        ----------
        durations : array of int64, shape (1 + events,)
            The first entry is 0. The array becomes the result's.
        delays : array of int64, shape (heads,)
            The delay of the arrival at each head (`arrival_of`).
        """
        workspace = self._workspace(1)
        clock = self._weigh(durations, delays, workspace.weights[0])
        return Solution(workspace.run().copy(), clock, self._head_of)

    def way(self, solution: "Solution", event: int) -> list[range]:
        """Return a longest way to the end of an event: runs of events, last first, each held up by the one after it.

        Their durations, and the delays of the arrivals between runs, add up to that end.
        """
        found, stop, head = [], event + 1, int(self._head_of[event])
        while True:
            start, before = int(self._event[head]), int(self._before[head])
            found.append(range(start, stop))
            if before > self._num_heads:
                return found
            if solution.idle[head] == solution.idle[before]:
                stop, head = start, before
            else:
                arrival = self.arrival_of[head]
                source = int(self._arrivals.source[arrival])
                stop, head = source + 1, int(self._head_of[source])

    def solve_at(self, scenarios: Iterable[tuple[Ints, Ints]], width: int, events: Ints) -> tuple[Ints, Ints]:
        """Return starts and ends of some events under `width` pairs of durations and delays, in one pass.

        Returns
        -------
        (array, array) of int64, shape (events, scenarios)
        """
        workspace = self._workspace(width)
        start, end = np.empty((2, len(events), width), np.int64)
        for index, (scenario, weights) in enumerate(zip(scenarios, workspace.weights, strict=True)):
            clock = self._weigh(*scenario, weights)
            start[:, index], end[:, index] = clock[events], clock[events + 1]
        idle = workspace.run()[self._head_of[events]].reshape(len(events), width)
        return start + idle, end + idle

    def _weigh(self, durations: Ints, delays: Ints, weights: Ints) -> Ints:
        """Set what each head adds to the idle time up to the event that it waits for; return the clock."""
        np.cumsum(durations, out=durations)
        durations.take(self._leaves, 0, weights, "clip")
        weights += delays
        weights -= durations.take(self._event)
        return durations

    def _workspace(self, width: int) -> "_Workspace":
        if width not in self._workspaces:
            self._workspaces = {one: kept for one, kept in self._workspaces.items() if one == 1}
            self._workspaces[width] = _Workspace(self._inputs, self._bounds.tolist(), width)
        return self._workspaces[width]


class _Workspace:
    """Arrays for a number of scenarios and their slices by level, made once and used again."""

    def __init__(self, inputs: NDArray[np.intp], bounds: list[int], width: int) -> None:
        tail = (width,) if width > 1 else ()
        self.weights = np.empty((width, bounds[-1]), np.int64)
        """To be set before `run`; shape (scenarios, heads)."""
        self._weights = np.empty((bounds[-1], *tail), np.int64)
        self._idle = np.zeros((bounds[-1] + 2, *tail), np.int64)
        self._idle[-1] = _NEVER
        scratch = np.empty((2 * max(high - low for low, high in pairwise(bounds)), *tail), np.int64)
        self._steps = []
        for low, high in pairwise(bounds):
            size = high - low
            gathered = scratch[: 2 * size]
            self._steps.append((
                inputs[2 * low : 2 * high], gathered, gathered[:size], gathered[size:],
                self._weights[low:high], self._idle[low:high],
            ))  # fmt: skip

    def run(self) -> Ints:
        """Return the idle time up to each head by level, shape (heads,) or (heads, scenarios), until the next run."""
        self._weights.reshape(len(self._weights), -1)[...] = self.weights.T
        take, add, maximum = self._idle.take, np.add, np.maximum
        for inputs, gathered, before, arrived, more, idle in self._steps:
            take(inputs, 0, gathered, "clip")
            add(arrived, more, arrived)
            maximum(before, arrived, out=idle)
        return self._idle[:-2]


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Times of all events: `start` and `end` at any of them.

    Attributes
    ----------
    idle : array of int64, shape (heads,)
    clock : array of int64, shape (events + 1,)
    head_of : array of int64, shape (events,)
    """

    idle: Ints
    clock: Ints
    head_of: Ints

    def start(self, events: Ints | slice = slice(None)) -> Ints:
        """Start times of some events, or of all."""
        return self._at(events, self.clock[:-1])

    def end(self, events: Ints | slice = slice(None)) -> Ints:
        """End times of some events, or of all."""
        return self._at(events, self.clock[1:])

    def duration(self, events: Ints) -> Ints:
        """Durations of some events."""
        found: Ints = self.clock[events + 1] - self.clock[events]
        return found

    def _at(self, events: Ints | slice, clock: Ints) -> Ints:
        found: Ints = self.idle[self.head_of[events]] + clock[events]
        return found
