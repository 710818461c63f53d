"""Orders by a list simulation over time, of any stages on any ranks, that never runs out of memory.

A rank that is free starts the most urgent ready forward or backward, by a rule; a weight gradient fills the wait for
what is known to arrive, or makes room. A forward starts only if the rank can still finish all micro-batches that it
has begun or has yet to begin one after the other (the banker's rule), so that ranks never block each other: the least
unfinished micro-batch finds room on every rank. Never looks further ahead than what has started.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, product
from random import Random

from simulator.actions import Kind
from simulator.schedules.jobs import Jobs, Sequences

NEVER = 1 << 62
RULES = ("backward", "tail")
"""What is urgent: backwards before forwards, or the longest path that follows."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a list simulation is free to choose.

    Attributes
    ----------
    urgent : str
        One of `RULES`.
    patience : int
        Per cent of a weight gradient that has to fit into a wait.
    ahead : bool
        Whether a stage may run ahead of others of its rank into memory that these need for the same micro-batches.
    noise : float
        How far times are wrong at most, as a part of the longest, where urgency is compared.
    seed : int
        Of the noise.
    """

    urgent: str
    patience: int
    ahead: bool = False
    noise: float = 0.0
    seed: int = 0


def rules() -> Iterator[Rule]:
    """Yield the rules worth trying, without end."""
    choices = tuple(product(RULES, (50, 0, 100), (False, True)))
    yield from (Rule(*choice) for choice in choices)
    for seed in count(1):
        yield from (Rule(*choice, noise=(0.5, 1.5)[seed % 2], seed=seed) for choice in choices)


def listed(jobs: Jobs, tails: list[int], rule: Rule) -> Sequences | None:
    """Return the orders that a rule leads to; None where it gets no room."""
    return _List(jobs, tails, rule).run()


class _List:
    def __init__(self, jobs: Jobs, tails: list[int], rule: Rule) -> None:
        self.jobs, self.patience = jobs, rule.patience
        self.urgency = _urgency(jobs, tails, rule)
        self.missing = [len(needs) for needs in jobs.needs]
        self.ready = [0] * len(jobs.actions)
        self.main = [[q for q in queues if jobs.actions[q[0]].kind is not Kind.W] for queues in jobs.queues]
        self.late = [[q for q in queues if jobs.actions[q[0]].kind is Kind.W] for queues in jobs.queues]
        self.at = {queue: 0 for queues in jobs.queues for queue in queues}
        self.rooms = [_Room(jobs, rank, ahead=rule.ahead) for rank in range(jobs.num_ranks)]
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
            index = self.at[queue]
            if index == len(queue) or self.missing[queue[index]]:
                continue
            job = queue[index]
            if not self.rooms[rank].admits(job):
                blocked = blocked or self.ready[job] <= now
            elif self.ready[job] > now:
                arrival = min(arrival, self.ready[job])
            elif best is None or self.urgency[job] < least:
                best, least = queue, self.urgency[job]
        if best is not None:
            return best, now
        filler, least = None, 0.0
        for queue in self.late[rank]:
            index = self.at[queue]
            if index < len(queue) and not self.missing[queue[index]]:
                job = queue[index]
                if filler is None or self.urgency[job] < least:
                    filler, least = queue, self.urgency[job]
        if filler is not None:
            wait = arrival - now
            if blocked or 100 * wait >= self.patience * self.jobs.duration_ns[filler[self.at[filler]]]:
                return filler, now
        return None, arrival


class _Room:
    """What a rank holds, and whether it may begin more."""

    def __init__(self, jobs: Jobs, rank: int, *, ahead: bool) -> None:
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


def _urgency(jobs: Jobs, tails: list[int], rule: Rule) -> list[float]:
    rng = Random(rule.seed)  # noqa: S311 - a fixed sequence is what is wanted
    noise = rule.noise * max(jobs.duration_ns)
    found: list[float] = []
    far = float(2 * (max(tails) + 1))
    for job, action in enumerate(jobs.actions):
        wrong = noise * (2 * rng.random() - 1) if noise else 0.0
        late = far if rule.urgent == "backward" and action.kind is Kind.F else 0
        found.append(late - tails[job] + wrong)
    return found
