"""Jobs as arrays, and their earliest starts and longest tails for given orders of the ranks: whole numbers.

The same times as the engine's without messages that occupy something; kept apart because a search asks thousands of
times for small cases (`simulator.schedules.order_kernels`).
"""

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

from simulator.actions import Kind
from simulator.schedules.job_shop import JobShop, Needs, Sequences
from simulator.schedules.order_kernels import Active
from simulator.schedules.order_timing import NEVER, Ints, Shop


class ShopArrays:
    """Jobs in the form that kernels take; orders are rows of ranks, one behind the other.

    Attributes
    ----------
    arrays : Shop
    row_at : array of int
        Where each rank's row begins, and the end of the last.
    unlimited : array of int
        For each queue, that it may be any number of jobs ahead.
    times : Timing
        Of what was timed last.
    """

    def __init__(self, jobs: JobShop) -> None:
        self.jobs, self.kernels, self.num_jobs = jobs, Active.kernels, len(jobs.actions)
        self.ints = ints = self.kernels.ints
        queues = [queue for row in jobs.queues for queue in row]
        number = [index for index, queue in enumerate(queues) for _ in queue]
        weights = [jobs.actions[queue[0]].kind is Kind.W for queue in queues]
        queue_at = list(accumulate(map(len, queues), initial=0))
        rank_at = list(accumulate(map(len, jobs.queues), initial=0))
        self.arrays = Shop(
            *map(ints, (jobs.duration_ns, jobs.after_ns, jobs.rank, jobs.take, jobs.free, jobs.unit)),
            *map(ints, _flat(jobs.needs)),
            *map(ints, _flat(jobs.feeds)),
            *map(ints, (number, queue_at, list(map(int, weights)), rank_at, jobs.room)),
        )
        self.row_at, self.queue_at = ints([queue_at[index] for index in rank_at]), ints(queue_at)
        self.unlimited = ints([NEVER] * len(queues))
        self.times = self.kernels.timing_for(self.arrays)

    def row(self, sequences: Sequence[Sequence[int]]) -> Ints:
        """Return orders as one row."""
        return self.ints(list(chain.from_iterable(sequences)))

    def sequences(self, row: Ints) -> Sequences:
        """Return the orders of a row."""
        flat = list(map(int, row))
        bounds = list(map(int, self.row_at))
        return tuple(tuple(flat[begin:end]) for begin, end in pairwise(bounds))

    def step_ns(self, row: Ints) -> int:
        """Time orders; return their step, -1 where ranks wait on each other."""
        return int(self.kernels.time_row(self.arrays, row, self.row_at, self.times))

    def time_queues(self) -> None:
        """Time the jobs where queues alone are in order."""
        self.kernels.time_row(self.arrays, self.ints(range(self.num_jobs)), self.queue_at, self.times)


def _flat(rows: Needs) -> tuple[list[int], list[int], list[int]]:
    """Return where each job's entries begin, and the jobs and the delays of all."""
    begins = list(accumulate(map(len, rows), initial=0))
    return begins, [job for row in rows for job, _ in row], [delay for row in rows for _, delay in row]


def starts(jobs: JobShop, sequences: Sequences) -> tuple[int, list[int]] | None:
    """Return the step of orders and the earliest start of each job; None where ranks wait on each other."""
    shop = ShopArrays(jobs)
    step_ns = shop.step_ns(shop.row(sequences))
    return None if step_ns < 0 else (step_ns, list(map(int, shop.times.start)))


def queue_order(jobs: JobShop) -> list[int]:
    """Return the jobs in an order in which each follows what it waits for and what is before it in its queue."""
    shop = ShopArrays(jobs)
    shop.time_queues()
    return list(map(int, shop.times.order))


def queue_heads_and_tails(jobs: JobShop) -> tuple[list[int], list[int]]:
    """Return earliest starts, and longest paths to the end of the step, where queues alone are in order."""
    shop = ShopArrays(jobs)
    shop.time_queues()
    return list(map(int, shop.times.start)), list(map(int, shop.times.tail))
