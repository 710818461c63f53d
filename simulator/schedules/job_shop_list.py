"""Orders by a list simulation over time, of any stages on any ranks, that never runs out of memory.

A rank that is free starts the most urgent job that is ready; a weight gradient fills the wait for what is known to
arrive, or makes room, unless it counts as urgent as others. A forward starts only if the rank can still finish all
micro-batches that it has begun or has yet to begin one after the other (the banker's rule), so that ranks never block
each other: the least unfinished micro-batch finds room on every rank. Never looks further ahead than what has started.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.actions import Kind
from simulator.schedules.job_shop import JobShop, Sequences

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Manner:
    """How a list simulation goes about it.

    Attributes
    ----------
    patience : int
        Per cent of a weight gradient that has to fit into a wait; -1 where it is no filler, but as urgent as others.
    ahead : bool
        Whether a stage may run ahead of others of its rank into memory that these need for the same micro-batches.
    """

    patience: int
    ahead: bool


def listed(jobs: JobShop, urgency: Sequence[float], manner: Manner) -> Sequences | None:
    """Return the orders that some urgency of all jobs (least first) leads to; None where a rank gets no room."""
    return _List(jobs, urgency, manner).run()


class _List:
    def __init__(self, jobs: JobShop, urgency: Sequence[float], manner: Manner) -> None:
        self.jobs, self.urgency, self.patience = jobs, urgency, manner.patience
        self.missing = [len(needs) for needs in jobs.needs]
        self.ready = [0] * len(jobs.actions)
        fills = [[manner.patience >= 0 and jobs.actions[q[0]].kind is Kind.W for q in queues] for queues in jobs.queues]
        rows = [list(zip(queues, fill, strict=True)) for queues, fill in zip(jobs.queues, fills, strict=True)]
        self.main = [[queue for queue, late in row if not late] for row in rows]
        self.late = [[queue for queue, late in row if late] for row in rows]
        self.at = {queue: 0 for queues in jobs.queues for queue in queues}
        self.rooms = [_Room(jobs, rank, ahead=manner.ahead) for rank in range(jobs.num_ranks)]
        self.orders: list[list[int]] = [[] for _ in jobs.queues]
        self.free_ns = [0] * jobs.num_ranks

    def run(self) -> Sequences | None:
        jobs = self.jobs
        wakes = [(0, rank) for rank in range(jobs.num_ranks)]
        while wakes:
            now, rank = heapq.heappop(wakes)
            if now < self.free_ns[rank]:
                continue
            queue, wake = self._pick(rank, now)
            if queue is None:
                if wake < NEVER:
                    heapq.heappush(wakes, (wake, rank))
                continue
            job = queue[self.at[queue]]
            self.at[queue] += 1
            self.orders[rank].append(job)
            self.rooms[rank].start(job)
            end = self.free_ns[rank] = now + jobs.duration_ns[job]
            heapq.heappush(wakes, (end, rank))
            for other, delay in jobs.feeds[job]:
                self.missing[other] -= 1
                self.ready[other] = max(self.ready[other], end + delay)
                if jobs.rank[other] != rank:
                    heapq.heappush(wakes, (max(end, self.free_ns[jobs.rank[other]]), jobs.rank[other]))
        if sum(map(len, self.orders)) < len(jobs.actions):
            return None
        return tuple(map(tuple, self.orders))

    def _pick(self, rank: int, now: int) -> tuple[tuple[int, ...] | None, int]:
        """Return the queue to take from now, or none and when something that has started arrives."""
        best, least, arrival, blocked = None, 0.0, NEVER, False
        for queue in self.main[rank]:
            job = self._next(queue)
            if job < 0:
                continue
            if not self.rooms[rank].admits(job):
                blocked = blocked or self.ready[job] <= now
            elif self.ready[job] > now:
                arrival = min(arrival, self.ready[job])
            elif best is None or self.urgency[job] < least:
                best, least = queue, self.urgency[job]
        if best is not None:
            return best, now
        filler = min(
            (queue for queue in self.late[rank] if self._next(queue) >= 0),
            key=lambda queue: self.urgency[self._next(queue)],
            default=None,
        )
        if filler is not None:
            time_ns = self.jobs.duration_ns[self._next(filler)]
            if blocked or 100 * (arrival - now) >= self.patience * time_ns:
                return filler, now
        return None, arrival

    def _next(self, queue: tuple[int, ...]) -> int:
        """Return the next job of a queue if all that it needs has started, else -1."""
        index = self.at[queue]
        return -1 if index == len(queue) or self.missing[queue[index]] else queue[index]


class _Room:
    """What a rank holds, and whether it may begin more."""

    def __init__(self, jobs: JobShop, rank: int, *, ahead: bool) -> None:
        self.jobs, self.room, self.held, self.ahead = jobs, jobs.room[rank], 0, ahead
        self.begun, self.to_take = [0] * (1 + max(jobs.unit)), [0] * (1 + max(jobs.unit))
        for queue in jobs.queues[rank]:
            for job in queue:
                self.to_take[jobs.unit[job]] += jobs.take[job]
        sizes = [{jobs.take[job] for job in queue} for queue in jobs.queues[rank]]
        one_size = all(len(size) == 1 for size in sizes) and sum(max(size) > 0 for size in sizes) <= 1
        self.blind = one_size or max(self.to_take) > self.room
        self.oldest = 0

    def admits(self, job: int) -> bool:
        """Whether a job may start: it takes nothing, or all that is begun can still be finished after it."""
        taken = self.jobs.take[job]
        left = self.room - self.held - taken
        if not taken or self.blind or left < 0:
            return not taken or left >= 0
        mine = self.jobs.unit[job]
        while self.oldest < mine and not self.to_take[self.oldest] and not self.begun[self.oldest]:
            self.oldest += 1
        if not self.ahead:
            return left >= sum(self.to_take[self.oldest : mine + 1]) - taken
        return self._is_safe(left, mine, taken)

    def _is_safe(self, left: int, mine: int, taken: int) -> bool:
        """Whether all micro-batches can be finished one after the other (the banker's rule)."""
        for unit in range(self.oldest, len(self.begun)):
            own = taken if unit == mine else 0
            if left < self.to_take[unit] - own:
                return False
            left += self.begun[unit] + own
        return True

    def start(self, job: int) -> None:
        """Take and free what a job does; freed is at once, as nothing else starts before its end."""
        taken, freed, unit = self.jobs.take[job], self.jobs.free[job], self.jobs.unit[job]
        self.held += taken - freed
        self.begun[unit] += taken - freed
        self.to_take[unit] -= taken
