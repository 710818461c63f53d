"""One step without its orders: jobs, the earliest each can start, and what must still follow it.

Models data, latency and that a rank does one thing at a time where several results of one rank are
needed. What every order obeys is kept, orders and memory are dropped: the ground of the lower bounds.
Costs that are the same for all micro-batches repeat with a period; only one period is held then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from costmodel.stages.costs import Amount, Costs
from simulator.actions import Action, Kind
from simulator.bounds.amount_of_action import amount_of
from simulator.dependencies import required
from simulator.schedule import StageGraph, stage_graph


@dataclass(frozen=True)
class Relaxation:
    """Jobs of one step.

    Attributes
    ----------
    costs : Costs
    num_microbatches : int
    split : bool
        Whether I and W are jobs of their own; otherwise B is one.
    recomputes : sequence of bool
        For each stage whether R is a job of its own; otherwise, and if empty, it is a part of I or B.
    num_slices : int
        Sequence slices of each action.
    speeds : sequence of float
        Speed factor of each rank; empty means 1 everywhere.
    reduces, updates : sequence of bool
        For each stage whether REDUCE and OPT end its step; empty means none.
    """

    costs: Costs
    num_microbatches: int
    split: bool
    recomputes: Sequence[bool] = ()
    num_slices: int = 1
    speeds: Sequence[float] = ()
    reduces: Sequence[bool] = ()
    updates: Sequence[bool] = ()

    @cached_property
    def graph(self) -> StageGraph:
        """The stage graph of the costs."""
        return stage_graph(self.costs)

    @cached_property
    def period(self) -> int:
        """Micro-batches after which costs and placement repeat, or all of them."""
        amounts = [
            amount
            for stage in self.costs.stages
            for amount in (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns, stage.recompute_ns,
                           stage.activation_bytes)
        ]  # fmt: skip
        if not all(isinstance(amount, int) for amount in amounts):
            return self.num_microbatches
        turns = (k * len(ranks) for k, ranks in zip(self.costs.multiples, self.costs.ranks, strict=True))
        return min(self.num_microbatches, lcm(*turns))

    def copies(self, action: Action) -> int:
        """How many of the step's jobs a job of the period represents."""
        return (self.num_microbatches - 1 - action.microbatch) // self.period + 1

    @cached_property
    def jobs(self) -> tuple[Action, ...]:
        """Jobs of one period, none before what it needs."""
        return tuple(self._jobs())

    def _jobs(self) -> Iterator[Action]:
        for stage in self.graph.order:
            yield from (Action(Kind.F, stage, k, j) for k in self._groups(stage) for j in self._pieces)
        for stage in reversed(self.graph.order):
            for k in self._groups(stage) if self.graph.backward[stage] else ():
                for j in reversed(self._pieces):
                    yield from self._backward(stage, k, j)

    def _backward(self, stage: int, k: int, j: int) -> Iterator[Action]:
        if self._apart(stage):
            yield Action(Kind.R, stage, k, j)
        yield Action(Kind.I if self.split else Kind.B, stage, k, j)
        if self.split:
            yield Action(Kind.W, stage, k, j)

    def _apart(self, stage: int) -> bool:
        return bool(self.recomputes) and self.recomputes[stage]

    def _groups(self, stage: int) -> range:
        return range(0, self.period, self.graph.multiples[stage])

    @property
    def _pieces(self) -> range:
        return range(self.num_slices) if self.num_slices > 1 else range(-1, 0)

    def amount(self, amount: Amount, job: Action) -> int:
        """Return a job's part of a stage's amount."""
        return amount_of(amount, job, self.graph.multiples[job.stage], self.num_microbatches, self.num_slices)

    def rank(self, action: Action) -> int:
        """Rank of a job."""
        return self.graph.rank_of(action.stage, action.microbatch)

    def occupied_ns(self, job: Action) -> int:
        """Return the least that a job takes of its rank's time; jobs of an overlapped pair together no more than it."""
        if job.kind is not Kind.F or job.stage not in self._beside_ns:
            return self.durations[job]
        return min(self.durations[job], max(0, self._beside_ns[job.stage] // self.num_slices))

    @cached_property
    def _beside_ns(self) -> dict[int, int]:
        """For each stage the least that an overlapped pair takes beyond the backward in it."""
        found: dict[int, int] = {}
        for pair in self.costs.pairs:
            left_ns = pair.pair_ns - self.costs.stages[pair.backward].whole_backward_ns
            found[pair.forward] = min(found.get(pair.forward, left_ns), left_ns)
        return found

    @cached_property
    def _pairs_ns(self) -> dict[tuple[bool, int], int]:
        """The shortest overlapped pair that the forward (True) or the backward of each stage can be a part of."""
        found: dict[tuple[bool, int], int] = {}
        for pair in self.costs.pairs:
            for end in ((True, pair.forward), (False, pair.backward)):
                found[end] = min(found.get(end, pair.pair_ns), pair.pair_ns)
        return found

    @cached_property
    def durations(self) -> dict[Action, int]:
        """Time of each job on its rank, from its start until its result leaves: alone, or in an overlapped pair."""
        return {job: self._duration(job) for job in self.jobs}

    def _duration(self, job: Action) -> int:
        alone_ns, pair_ns = self._alone_ns(job), self._pairs_ns.get((job.kind is Kind.F, job.stage))
        if pair_ns is None or job.kind is Kind.R:
            return alone_ns
        before_ns = self._duration(replace(job, kind=Kind.I)) if job.kind is Kind.W else 0
        return min(alone_ns, pair_ns // self.num_slices - before_ns)

    def _alone_ns(self, job: Action) -> int:
        stage = self.costs.stages[job.stage]
        back = (stage.backward_input_ns,) if self._apart(job.stage) else (stage.backward_input_ns, stage.recompute_ns)
        parts: dict[Kind, tuple[Amount, ...]] = {
            Kind.F: (stage.forward_ns,),
            Kind.R: (stage.recompute_ns,),
            Kind.I: back,
            Kind.W: (stage.backward_weight_ns,),
            Kind.B: (*back, stage.backward_weight_ns),
        }
        return self.on_rank(sum(self.amount(part, job) for part in parts[job.kind]), self.rank(job))

    def on_rank(self, time_ns: int, rank: int) -> int:
        """Time of work on a rank of some speed, rounded down so that it is never overstated."""
        return time_ns if not self.speeds or self.speeds[rank] == 1 else int(time_ns / self.speeds[rank])

    @cached_property
    def needs(self) -> dict[Action, tuple[Action, ...]]:
        """What each job needs."""
        present = set(self.jobs)
        return {job: required(self.graph, job, present) for job in self.jobs}

    @cached_property
    def earliest(self) -> dict[Action, int]:
        """Earliest start of each job, from the start of the step.

        All that it needs has ended, and arrived; of what it needs from one rank only one thing ran at a time.
        """
        starts: dict[Action, int] = {}
        for job in self.jobs:
            starts[job] = self._after(job, self.needs[job], starts)
        return starts

    @cached_property
    def tails(self) -> dict[Action, int]:
        """Least time from the end of each job to the end of the step, by the same argument backwards."""
        users: dict[Action, list[Action]] = {job: [] for job in self.jobs}
        for job, needed in self.needs.items():
            for need in needed:
                users[need].append(job)
        tails: dict[Action, int] = {}
        for job in reversed(self.jobs):
            closing = self.closing_ns(job.stage, self.rank(job)) if job.kind in (Kind.B, Kind.I, Kind.W) else 0
            tails[job] = max(closing, self._after(job, users[job], tails))
        return tails

    def closing_ns(self, stage: int, rank: int) -> int:
        """Reduction and optimizer step that follow every backward of a stage."""
        return self.reduce_ns(stage) + self.update_ns(stage, rank)

    def reduce_ns(self, stage: int) -> int:
        """Time of a stage's REDUCE, 0 without one."""
        has = self.graph.backward[stage] and self.reduces and self.reduces[stage]
        return self.costs.stages[stage].reduce_ns if has else 0

    def update_ns(self, stage: int, rank: int) -> int:
        """Time of a stage's OPT on a rank, 0 without one."""
        has = self.graph.backward[stage] and self.updates and self.updates[stage]
        return self.on_rank(self.costs.stages[stage].optimizer_ns, rank) if has else 0

    def _after(self, job: Action, others: Sequence[Action], since: dict[Action, int]) -> int:
        """Least time at which all `others` are over and have come to (or gone from) the rank of `job`."""
        by_rank: dict[int, list[tuple[int, int, int]]] = {}
        for other in others:
            delay = self.delay(job, other)
            by_rank.setdefault(self.rank(other), []).append((since[other], self.durations[other], delay))
        latest = 0
        for works in by_rank.values():
            now = 0
            for begin, time_ns, _ in sorted(works):
                now = max(now, begin) + time_ns
            longest = max(begin + time_ns + delay for begin, time_ns, delay in works)
            latest = max(latest, longest, now + min(delay for *_, delay in works))
        return latest

    def delay(self, one: Action, other: Action) -> int:
        """Latency between the ranks of two jobs whose stages share an edge."""
        if self.rank(one) == self.rank(other):
            return 0
        ends = (one.stage, other.stage)
        return self._p2p.get(ends, 0) or self._p2p.get(ends[::-1], 0)

    @cached_property
    def _p2p(self) -> dict[tuple[int, int], int]:
        return {(edge.source, edge.target): edge.p2p_ns for edge in self.costs.edges}
