"""Lower bounds on the step time of every order of a family, for given stages, ranks and micro-batches.

Each bound is that of one rank. Let r(x) be the earliest start of a job x (its longest path from the start of
the step, forwards, latencies and what it needs one at a time from one rank) and q(x) the least time that
must follow it (`simulator.bounds.relaxation`). A rank does one thing at a time, so for any set X of its jobs
step >= min r(X) + sum of durations(X) + min q(X): nothing of X starts before the least r, its work takes its
sum, and after the last of X at least the least q follows. The best X is found exactly, as the makespan of
Jackson's preemptive schedule (Carlier 1982): run the arrived job with the largest q.

The families differ in their jobs alone (`docs/bounds.md`). With X = all jobs of the rank:

- fused (F and whole B, one stage a rank): head + n t + tail. The last job is a B, after which the gradient
  still goes up through the stages before it: q(B) is the longest such path.
- split (I and W apart, one stage a rank): head + n t. The last job is a W, which nothing waits for.
- any (several stages a rank): least head of the rank's stages + sum of n t. Jobs are split, for that is a
  relaxation of the fused ones: B is I at once followed by W, with its gradient sent late.

Other sets X tighten them: backwards alone start only after the way down and back, forwards of a stage without
backward are followed by what lies downstream. REDUCE and OPT follow all of a stage's backwards and are part of
q where the schedule has them (OPT after its own stage's REDUCE: true in every optimizer mode); OPT is also work
of its rank. Where overlapped pairs have a time t of their own, F, I and W of a pair take t together, and results leave
after t where that is sooner. A memory limit adds what `simulator.bounds.memory_limit` derives, but not to these.
Leaves out that links carry one message at a time, and what an optimizer mode adds.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs
from simulator.actions import Kind
from simulator.bounds.memory_limit import MemoryLimit
from simulator.bounds.relaxation import Relaxation
from simulator.schedule import Schedule, check_multiples

FAMILIES = {
    "fused": "F and whole B, one stage a rank",
    "split": "I and W apart, one stage a rank",
    "any": "any order, several stages a rank",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on the step time.

    Attributes
    ----------
    ns : int
        No order in `scope` takes less.
    scope : str
        What it ranges over, in words.
    stage, rank : int
        Where it binds: the rank, and the stage that takes most of it.
    argument : str
        Which argument gives it.
    """

    ns: int
    scope: str
    stage: int
    rank: int
    argument: str


def family_of(schedule: Schedule) -> str:
    """Return the family of a schedule: fused, split or any."""
    if any(len(schedule.graph.stages_of(rank)) > 1 for rank in range(schedule.graph.num_ranks)):
        return "any"
    split = any(action.kind in (Kind.I, Kind.W) for order in schedule.orders for action in order)
    return "split" if split else "fused"


def lower_bound_ns(
    costs: Costs,
    num_microbatches: int,
    family: str,
    memory_limit_bytes: int | None = None,
    *,
    recomputes: Sequence[bool] = (),
    num_slices: int = 1,
    speeds: Sequence[float] = (),
    reduces: Sequence[bool] = (),
    updates: Sequence[bool] = (),
) -> Bound:
    """Bound the step time of every schedule of a family from below.

    Parameters
    ----------
    costs : Costs
    num_microbatches : int
    family : str
        ``fused``, ``split`` or ``any``; the first two need one stage a rank.
    memory_limit_bytes : int, optional
        What each rank holds, static part included.
    recomputes : sequence of bool
        For each stage whether its orders hold R as an action of its own.
    num_slices : int
        Sequence slices of each action.
    speeds : sequence of float
        Speed factor of each rank.
    reduces, updates : sequence of bool
        For each stage whether its step ends with REDUCE and with OPT.

    Raises
    ------
    InvalidInput
        For an unknown family, a family that does not contain these stages, or multiples that do not divide.
    NoPlanFits
        When a rank cannot hold one forward.
    """
    step = Relaxation(costs, num_microbatches, family != "fused", recomputes, num_slices, speeds, reduces, updates)
    check_multiples(step.graph, num_microbatches)
    _check_family(step, family)
    found = list(_rank_bounds(step))
    scope = f"orders of {num_microbatches} micro-batches on these stages and ranks ({family}: {FAMILIES[family]})"
    if costs.pairs:
        scope += ", pairs overlapped or not"
    elif memory_limit_bytes is not None:
        found += MemoryLimit(step, memory_limit_bytes).bounds()
        scope += f" within {memory_limit_bytes} bytes a rank"
    ns, rank, stage, argument = max(found, key=lambda bound: bound[0])
    return Bound(ns, scope, stage, rank, argument)


def bound_of(
    schedule: Schedule, costs: Costs, memory_limit_bytes: int | None = None, speeds: Sequence[float] = ()
) -> Bound:
    """Return the bound of the family that contains a schedule, with the REDUCE, OPT and R that it has.

    A memory limit adds nothing where activations are away for a while (OFFLOAD).
    """
    if not schedule.paired:
        costs = replace(costs, pairs=())
    kinds: dict[Kind, set[int]] = {Kind.REDUCE: set(), Kind.OPT: set(), Kind.R: set(), Kind.OFFLOAD: set()}
    for order in schedule.orders:
        for action in order:
            if action.kind in kinds:
                kinds[action.kind].add(action.stage)
    stages = range(schedule.graph.num_stages)
    return lower_bound_ns(
        costs,
        schedule.num_microbatches,
        family_of(schedule),
        None if kinds[Kind.OFFLOAD] else memory_limit_bytes,
        recomputes=[stage in kinds[Kind.R] for stage in stages],
        num_slices=schedule.num_slices,
        speeds=speeds,
        reduces=[stage in kinds[Kind.REDUCE] for stage in stages],
        updates=[stage in kinds[Kind.OPT] for stage in stages],
    )


def _check_family(step: Relaxation, family: str) -> None:
    if family not in FAMILIES:
        raise InvalidInput(f"{family!r} is no family of schedules; choose one of {', '.join(FAMILIES)}")
    shared = [rank for rank in range(step.graph.num_ranks) if len(step.graph.stages_of(rank)) > 1]
    if family != "any" and shared:
        raise InvalidInput(
            f"family {family!r} has one stage a rank, and rank {shared[0]} has the stages "
            f"{step.graph.stages_of(shared[0])}; use 'any'"
        )


def _rank_bounds(step: Relaxation) -> Iterator[tuple[int, int, int, str]]:
    """Yield (ns, rank, stage, argument) of each rank's work."""
    works: dict[int, dict[tuple[int, int], int]] = {}
    by_stage: dict[int, dict[int, int]] = {}
    for job in step.jobs:
        rank, time_ns = step.rank(job), step.occupied_ns(job) * step.copies(job)
        alike = works.setdefault(rank, {})
        key = (step.earliest[job], step.tails[job])
        alike[key] = alike.get(key, 0) + time_ns
        stages = by_stage.setdefault(rank, {})
        stages[job.stage] = stages.get(job.stage, 0) + time_ns
    for rank, alike in works.items():
        stages = by_stage[rank]
        for stage in (s for s in stages if step.update_ns(s, rank)):
            begin = _update_start(step, rank, stage)
            alike[begin, 0] = alike.get((begin, 0), 0) + step.update_ns(stage, rank)
        ns = one_machine_ns((head, time_ns, tail) for (head, tail), time_ns in alike.items())
        yield ns, rank, max(stages, key=lambda stage: stages[stage]), f"work of rank {rank} between its head and tail"


def _update_start(step: Relaxation, rank: int, stage: int) -> int:
    """Earliest start of a stage's OPT: behind its backwards and REDUCE."""
    last = [
        step.earliest[job] + step.durations[job] for job in step.jobs if job.stage == stage and step.rank(job) == rank
    ]
    return max(last) + step.reduce_ns(stage)


def one_machine_ns(works: Iterable[tuple[int, int, int]]) -> int:
    """Return the largest min r + sum p + min q over all sets of (r, p, q): Jackson's preemptive schedule."""
    arriving = sorted(works, reverse=True)
    waiting: list[tuple[int, int]] = []
    now = longest = 0
    while arriving or waiting:
        if not waiting:
            now = max(now, arriving[-1][0])
        while arriving and arriving[-1][0] <= now:
            _, time_ns, tail = arriving.pop()
            heapq.heappush(waiting, (-tail, time_ns))
        negative_tail, time_ns = heapq.heappop(waiting)
        run = min(time_ns, arriving[-1][0] - now) if arriving else time_ns
        now += run
        if run < time_ns:
            heapq.heappush(waiting, (negative_tail, time_ns - run))
        else:
            longest = max(longest, now - negative_tail)
    return longest
