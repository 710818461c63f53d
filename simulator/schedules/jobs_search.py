"""Local search on orders: moves of jobs on the longest path, by tabu search.

The step gets shorter only if some run of jobs that follow each other on one rank, on every longest path, gets another
first or last job. So such moves alone are tried: the one whose estimate is least (from the starts and tails of the
orders before it, Taillard 1994) is made and timed exactly, and not undone for some moves. Moves keep the queues in
order and every rank within its memory. The work is counted in jobs that are timed, never by a clock, so that equal
input gives equal orders.
"""

from collections.abc import Iterator
from random import Random

from simulator.schedules.jobs import Jobs, Sequences
from simulator.schedules.jobs_times import Timed, timed

REACH = 8
"""How far from either end of a run a job may stand that is moved to that end."""
MOST_TRIED, TABU = 6, 7
"""Moves that are timed at most before one can be run, and moves for which one is not undone, at least."""

Move = tuple[int, int, int]
"""Rank, position from and position to."""


class Search:
    """A tabu search from some orders.

    Parameters
    ----------
    jobs : Jobs
    sequences : Sequences
        Within the memory of all ranks.
    rng : Random
    """

    def __init__(self, jobs: Jobs, sequences: Sequences, rng: Random) -> None:
        self.jobs, self.rng = jobs, rng
        self.now = [list(row) for row in sequences]
        self.queue_of = _queue_of(jobs)
        found = timed(jobs, self.now)
        assert found is not None  # noqa: S101 - the caller's orders can be run
        self.times: Timed = found
        self.best_ns, self.best = found.step_ns, sequences
        self.tabu: dict[tuple[int, int], int] = {}
        self.num_moves = 0

    def run(self, num_moves: int, enough_ns: int) -> None:
        """Make so many moves at most; end at a step that is short enough."""
        while self.num_moves < num_moves and self.best_ns > enough_ns and self._move():
            if self.times.step_ns < self.best_ns:
                self.best_ns, self.best = self.times.step_ns, tuple(map(tuple, self.now))

    def _try(self, move: Move) -> bool:
        """Make a move, unless ranks would then wait on each other."""
        rank, source, target = move
        row = self.now[rank]
        row.insert(target, row.pop(source))
        times = timed(self.jobs, self.now)
        if times is None:
            row.insert(source, row.pop(target))
            return False
        self.times = times
        return True

    def _move(self) -> bool:
        """Make the best move that can be run; return whether there is one."""
        moves = {move: self._estimate(move) for move in self._moves()}
        ranked = sorted((self._is_tabu(move, ns), ns, self.rng.random(), move) for move, ns in moves.items())
        for _, _, _, move in ranked[:MOST_TRIED]:
            rank, source, target = move
            job, passed = self.now[rank][source], self._passed(move)
            self.num_moves += 1
            if self._try(move):
                until = self.num_moves + TABU + self.rng.randrange(TABU)
                for other in passed:
                    self.tabu[(job, other) if target > source else (other, job)] = until
                return True
        return False

    def _passed(self, move: Move) -> list[int]:
        rank, source, target = move
        row = self.now[rank]
        return row[source + 1 : target + 1] if target > source else row[target:source]

    def _is_tabu(self, move: Move, ns: int) -> bool:
        """Whether a move puts jobs back into an order that was left not long ago, without a new best."""
        if ns < self.best_ns:
            return False
        rank, source, target = move
        job = self.now[rank][source]
        pairs = ((other, job) if target > source else (job, other) for other in self._passed(move))
        return any(self.tabu.get(pair, -1) >= self.num_moves for pair in pairs)

    def _moves(self) -> Iterator[Move]:
        for rank, first, last in self._runs():
            seen = set()
            for position in range(first + 1, min(last, first + REACH) + 1):
                seen.add((position, first))
                seen.add((first, position))
            for position in range(max(first, last - REACH), last):
                seen.add((position, last))
                seen.add((last, position))
            for source, target in sorted(seen):
                if self._is_allowed((rank, source, target)):
                    yield rank, source, target

    def _runs(self) -> list[tuple[int, int, int]]:
        """Return the runs of a longest path: rank, first and last position."""
        jobs, times = self.jobs, self.times
        ends = [job for job, ns in enumerate(times.start) if not ns and times.tail[job] == times.step_ns]
        job = self.rng.choice(ends)
        position = {one: index for row in self.now for index, one in enumerate(row)}
        behind = {b: one for one, b in enumerate(times.before) if b >= 0}
        runs, first = [], job
        while True:
            end = times.start[job] + jobs.duration_ns[job]
            left = times.step_ns - end
            steps = [
                (o, True)
                for o, delay in jobs.feeds[job]
                if times.start[o] == end + delay and times.tail[o] + delay == left
            ]
            other = behind.get(job, -1)
            if other >= 0 and times.start[other] == end and times.tail[other] == left:
                steps = [(o, True) for o, _ in steps if o != other] + [(other, False)]
            if not steps or (left == jobs.after_ns[job] and left == 0):
                runs.append((first, job))
                break
            following, leaves = self.rng.choice(steps)
            if leaves:
                runs.append((first, job))
                first = following
            job = following
        return [(jobs.rank[a], position[a], position[b]) for a, b in runs if a != b]

    def _is_allowed(self, move: Move) -> bool:
        """Whether queues stay in order, no job passes what it waits for itself, and memory suffices."""
        rank, source, target = move
        jobs, row = self.jobs, self.now[rank]
        job, passed = row[source], self._passed(move)
        if any(self.queue_of[other] == self.queue_of[job] for other in passed):
            return False
        direct = {o for o, _ in (jobs.feeds if target > source else jobs.needs)[job]}
        if direct.intersection(passed):
            return False
        change = jobs.take[job] - jobs.free[job]
        if target > source and change >= 0 and not any(jobs.take[o] for o in passed):
            return True
        if target < source and change <= 0 and not jobs.take[job]:
            return True
        low = min(source, target)
        held = sum(jobs.take[one] - jobs.free[one] for one in row[:low])
        moved = [*passed, job] if target > source else [job, *passed]
        for one in moved:
            held += jobs.take[one]
            if held > jobs.room[rank]:
                return False
            held -= jobs.free[one]
        return True

    def _estimate(self, move: Move) -> int:
        """Return the longest path through the jobs that change places, others staying as they are."""
        rank, source, target = move
        jobs, times, row = self.jobs, self.times, self.now[rank]
        low, high = min(source, target), max(source, target)
        moved = [*self._passed(move), row[source]] if target > source else [row[source], *self._passed(move)]
        end = times.start[row[low - 1]] + jobs.duration_ns[row[low - 1]] if low else 0
        starts = []
        for job in moved:
            for other, delay in jobs.needs[job]:
                end = max(end, times.start[other] + jobs.duration_ns[other] + delay)
            starts.append(end)
            end += jobs.duration_ns[job]
        tail = times.tail[row[high + 1]] if high + 1 < len(row) else 0
        longest = 0
        for job, start in zip(reversed(moved), reversed(starts), strict=True):
            tail = max(tail, jobs.after_ns[job])
            for other, delay in jobs.feeds[job]:
                tail = max(tail, times.tail[other] + delay)
            tail += jobs.duration_ns[job]
            longest = max(longest, start + tail)
        return longest


def _queue_of(jobs: Jobs) -> list[int]:
    found, number = [0] * len(jobs.actions), 0
    for queues in jobs.queues:
        for queue in queues:
            for job in queue:
                found[job] = number
            number += 1
    return found
