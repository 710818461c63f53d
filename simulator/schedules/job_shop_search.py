"""Local search on orders: moves of jobs on the longest path, by tabu search.

The step gets shorter only if some run of jobs that follow each other on one rank, on every longest path, gets another
first or last job. So such moves alone are tried: the one whose estimate is least (from the starts and tails of the
orders before it, Taillard 1994) is made and timed exactly, and not undone for some moves. Moves keep the queues in
order and every rank within its memory. The work is counted in jobs that are timed, never by a clock, so that equal
input gives equal orders.
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from random import Random

from simulator.schedules.job_shop import JobShop, Sequences
from simulator.schedules.job_shop_times import Timed, timed

REACH = 8
"""How far from either end of a run a job may be that is moved to that end."""
MOST_TRIED, TABU = 6, 7
"""Moves that are timed at most before one can be run, and moves for which one is not undone, at least."""

Move = tuple[int, int, int]
"""Rank, position from and position to."""


class OrderSearch:
    """A tabu search from some orders.

    Parameters
    ----------
    jobs : JobShop
    sequences : Sequences
        Within the memory of all ranks.
    rng : Random
    """

    def __init__(self, jobs: JobShop, sequences: Sequences, rng: Random) -> None:
        self.jobs, self.rng = jobs, rng
        self.now = [list(row) for row in sequences]
        self.earlier, self.later = _barriers(jobs)
        self.held: dict[int, list[int]] = {}
        found = timed(jobs, self.now)
        assert found is not None  # noqa: S101 - the caller's orders can be run
        self.times: Timed = found
        self.best_ns, self.best = found.step_ns, sequences
        self.tabu: dict[tuple[int, int], int] = {}
        self.num_moves = 0

    def run(self, num_moves: int, enough_ns: int) -> None:
        """Make at most `num_moves` moves; end at a step that is short enough."""
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
        self.held.pop(rank, None)
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
        times = self.times
        job = self.rng.choice([j for j, ns in enumerate(times.start) if not ns and times.tail[j] == times.step_ns])
        runs, first = [], job
        while (step := self._next_on_path(job)) is not None:
            following, stays = step
            if not stays:
                runs.append((first, job))
                first = following
            job = following
        runs.append((first, job))
        rows = [(self.now[self.jobs.rank[job]], job, last) for job, last in runs if job != last]
        return [(self.jobs.rank[job], row.index(job), row.index(last)) for row, job, last in rows]

    def _next_on_path(self, job: int) -> tuple[int, bool] | None:
        """Return a job that follows on a longest path, and whether as the next on its rank; None at the end."""
        jobs, times = self.jobs, self.times
        end = times.start[job] + jobs.duration_ns[job]
        left = times.step_ns - end
        steps = [
            (other, False)
            for other, delay in jobs.feeds[job]
            if times.start[other] == end + delay and times.tail[other] + delay == left
        ]
        behind = times.behind[job]
        if behind >= 0 and times.start[behind] == end and times.tail[behind] == left:
            steps = [step for step in steps if step[0] != behind] + [(behind, True)]
        return self.rng.choice(steps) if steps and left else None

    def _is_allowed(self, move: Move) -> bool:
        """Whether queues stay in order, no job passes what it waits for itself, and memory suffices."""
        rank, source, target = move
        jobs, row = self.jobs, self.now[rank]
        job, passed = row[source], self._passed(move)
        later = target > source
        if not (self.later if later else self.earlier)[job].isdisjoint(passed):
            return False
        held = self._held(rank)[min(source, target)]
        for one in (*passed, job) if later else (job, *passed):
            held += jobs.take[one]
            if held > jobs.room[rank]:
                return False
            held -= jobs.free[one]
        return True

    def _held(self, rank: int) -> list[int]:
        """Return what a rank holds before each of its jobs."""
        if rank not in self.held:
            change = (self.jobs.take[job] - self.jobs.free[job] for job in self.now[rank])
            self.held[rank] = list(accumulate(change, initial=0))
        return self.held[rank]

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


def _barriers(jobs: JobShop) -> tuple[list[set[int]], list[set[int]]]:
    """Return for each job those that it may not get before, and those that it may not get behind."""
    earlier, later = ([{other for other, _ in row} for row in rows] for rows in (jobs.needs, jobs.feeds))
    for queues in jobs.queues:
        for queue in queues:
            for first, second in pairwise(queue):
                later[first].add(second)
                earlier[second].add(first)
    return earlier, later
