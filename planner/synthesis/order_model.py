"""The orders of a step as a CP-SAT model: when every job starts, on ranks that do one thing at a time, within memory.

Queues keep their order: where all actions of a stage cost the same and it has one replica, any orders can be brought
into that form without a job ending later. Times are counted in their greatest common divisor. Leaves out the buffers
of messages.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd

from ortools.sat.python import cp_model

from simulator.schedules.job_shop import JobShop
from simulator.schedules.job_shop_times import queue_heads_and_tails


class OrderModel:
    """Variables, constraints, objective and hint.

    Parameters
    ----------
    jobs : JobShop
    start_ns : sequence of int
        Starts of known orders: the hint. Nothing longer than they is sought.
    step_ns, least_ns : int
        Their step, and a lower bound on every step.
    """

    def __init__(self, jobs: JobShop, start_ns: Sequence[int], step_ns: int, least_ns: int) -> None:
        self.jobs, self.model = jobs, cp_model.CpModel()
        delays = (delay for needs in jobs.needs for _, delay in needs)
        self.unit_ns = gcd(step_ns, *jobs.duration_ns, *jobs.after_ns, *delays) or 1
        self._make_variables(step_ns, least_ns)
        self._jobs_wait_for_what_they_need()
        self._queues_keep_their_order()
        self._ranks_do_one_thing_at_a_time()
        self._ranks_keep_within_their_room()
        self._forwards_wait_for_room()
        self._the_step_ends_last()
        self._hint(start_ns, step_ns)

    def _units(self, time_ns: int) -> int:
        return time_ns // self.unit_ns

    def _make_variables(self, step_ns: int, least_ns: int) -> None:
        model, most = self.model, self._units(step_ns)
        self.most = most
        self.step = model.new_int_var(-(-least_ns // self.unit_ns), most, "step")
        heads, tails = queue_heads_and_tails(self.jobs)
        self.start, self.end, self.interval = [], [], []
        self.holds: list[tuple[cp_model.IntVar, int, int]] = []
        for job, (head, tail, time_ns) in enumerate(zip(heads, tails, self.jobs.duration_ns, strict=True)):
            time = self._units(time_ns)
            start = model.new_int_var(self._units(head), most - self._units(tail), f"start {job}")
            self.start.append(start)
            self.end.append(start + time)
            self.interval.append(model.new_fixed_size_interval_var(start, time, f"run {job}"))

    def _jobs_wait_for_what_they_need(self) -> None:
        for job, needs in enumerate(self.jobs.needs):
            for other, delay in needs:
                self.model.add(self.start[job] >= self.end[other] + self._units(delay))

    def _queues_keep_their_order(self) -> None:
        for queues in self.jobs.queues:
            for queue in queues:
                for first, second in pairwise(queue):
                    self.model.add(self.start[second] >= self.end[first])

    def _ranks_do_one_thing_at_a_time(self) -> None:
        for queues in self.jobs.queues:
            self.model.add_no_overlap([self.interval[job] for queue in queues for job in queue])

    def _ranks_keep_within_their_room(self) -> None:
        for rank, room in enumerate(self.jobs.room):
            holds = list(self._holds(rank))
            if sum(size for _, _, size in holds) > room:
                intervals = [self._held(first, last) for first, last, _ in holds]
                self.model.add_cumulative(intervals, [size for _, _, size in holds], room)

    def _forwards_wait_for_room(self) -> None:
        """Say again what memory implies where a rank has one queue of forwards, all alike: it makes bounds tight."""
        jobs = self.jobs
        for queues, room in zip(jobs.queues, jobs.room, strict=True):
            takers = [queue for queue in queues if jobs.take[queue[0]]]
            sizes = {jobs.take[job] for queue in takers for job in queue}
            if len(takers) == 1 and len(sizes) == 1 and len(queues) > 1:
                most = room // sizes.pop()
                backwards = queues[queues.index(takers[0]) + 1]
                for forward, backward in zip(takers[0][most:], backwards, strict=False):
                    self.model.add(self.start[forward] >= self.end[backward])

    def _held(self, first: int, last: int) -> cp_model.IntervalVar:
        """Return the interval from the start of one job to the end of another."""
        time = self.model.new_int_var(0, self.most, f"hold {first} {last}")
        self.holds.append((time, first, last))
        return self.model.new_interval_var(self.start[first], time, self.end[last], f"held {first} {last}")

    def _holds(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """Yield from the start of which job to the end of which a rank holds how many bytes."""
        jobs = self.jobs
        taker = {self._place(job): job for queue in jobs.queues[rank] for job in queue if jobs.take[job]}
        for queue in jobs.queues[rank]:
            for job in queue:
                if jobs.free[job]:
                    yield taker[self._place(job)], job, jobs.free[job]

    def _place(self, job: int) -> tuple[int, int]:
        return self.jobs.actions[job].stage, self.jobs.actions[job].microbatch

    def _the_step_ends_last(self) -> None:
        for queues in self.jobs.queues:
            for queue in queues:
                self.model.add(self.step >= self.end[queue[-1]] + self._units(self.jobs.after_ns[queue[-1]]))
        self.model.minimize(self.step)

    def _hint(self, start_ns: Sequence[int], step_ns: int) -> None:
        for start, known_ns in zip(self.start, start_ns, strict=True):
            self.model.add_hint(start, self._units(known_ns))
        for time, first, last in self.holds:
            self.model.add_hint(time, self._units(start_ns[last] + self.jobs.duration_ns[last] - start_ns[first]))
        self.model.add_hint(self.step, self._units(step_ns))
