"""Proposals of stages, and what the simulator makes of them.

A proposal optimises some objective on the costs of `planner.search.published.prices`; it is placed as it lists its
stages and within hosts, and simulated under each open schedule. Where it is over the memory limit when it is
simulated, it is asked for again with as much less. Leaves out how proposals are made.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

from costmodel.stages.config import StageConfig
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition, numbered
from planner.question.problem import Problem
from planner.search.budget import Deadline
from planner.search.published.prices import View

NUM_TRIES = 4
"""Times that a proposal is asked for at one micro-batch size, each with less memory."""
TIGHTER = 0.98
"""Part of the memory that is left to the estimate beyond what the simulator found too much."""


@dataclass(frozen=True, slots=True)
class ProposedStage:
    """A stage as a rival proposes it: atoms, configuration with replicas, micro-batches an action."""

    atoms: tuple[int, ...]
    config: StageConfig
    multiple: int = 1


Propose = Callable[[View, float, Deadline], Sequence[ProposedStage] | None]
"""Takes a view of the problem, the bytes that a rank may hold (infinite: not known) and limits; returns stages in a
topological order, none where nothing fits."""


def not_taken(problem: Problem) -> list[str]:
    """Return what is fixed that proposals know nothing of, as flags say it."""
    space, pins = problem.space, problem.pins
    given = {
        "--stages": space.stages, "--max-stages": problem.max_stages, "--chunks": space.chunks not in (None, 1),
        "--context": space.context not in (None, 1), "--expert": space.expert not in (None, 1),
        "--expert-tensor": space.expert_tensor not in (None, space.tensor or 1),
        "--sequence-parallel": space.sequence_parallel, "--offload": space.offload not in (None, "none"),
        "[[stage]] in --pin": pins.stages if pins else (),
    }  # fmt: skip
    return [name for name, value in given.items() if value]


def proposals(propose: Propose, view: View, limits: Deadline, *, line: bool) -> Iterator[list[Evaluated]]:
    """Yield what a proposal simulates to, placed in each way; where it is over the limit, what is proposed then."""
    most = min(filter(None, view.prepared.problem.memory_limits_bytes), default=0)
    memory = float(most) if all(view.prepared.problem.memory_limits_bytes) else float("inf")
    for _ in range(NUM_TRIES):
        stages = propose(view, memory, limits)
        found = _evaluated(view, stages, line=line) if stages else []
        if not found:
            return
        yield found
        excess = min(each.excess_bytes for each in found)
        if not excess or limits.expired:
            return
        memory *= TIGHTER * most / (most + excess)


def _evaluated(view: View, stages: Sequence[ProposedStage], *, line: bool) -> list[Evaluated]:
    """Simulate a proposal under the schedules that are open, placed in each way."""
    problem, partition, found = view.prepared.problem, partition_of(view, stages), []
    for places, schedule in product(placings(view, stages), problem.schedules):
        found += view.prepared.evaluated(Candidate(partition, places, view.microbatch_size, schedule, line))
    return found


def partition_of(view: View, stages: Sequence[ProposedStage]) -> Partition:
    """Return the stage of each atom."""
    stage_of = {atom: number for number, stage in enumerate(stages) for atom in stage.atoms}
    found = numbered(view.atoms, [stage_of[atom] for atom in range(len(view.atoms))], as_named=True)
    if found is None:
        raise AssertionError("stages that wait for each other")
    return found


def places_of(stages: Sequence[ProposedStage], starts: Sequence[int] = ()) -> tuple[StagePlacement, ...]:
    """Return where stages run: each from a rank on, on the next ranks by default."""
    sizes = list(map(_num_ranks, stages))
    first = starts or [0, *accumulate(sizes[:-1])]
    return tuple(
        StagePlacement(stage.config, tuple(range(start, start + size)), stage.multiple)
        for stage, start, size in zip(stages, first, sizes, strict=True)
    )


def placings(view: View, stages: Sequence[ProposedStage]) -> list[tuple[StagePlacement, ...]]:
    """Return where stages may run: each on the next ranks, or so that few lie on several hosts, if that differs.

    A host is a group of the innermost link. Rivals say nothing of this, and a sum of gradients over hosts is dear.
    """
    size = view.prepared.problem.machines.groups[0].group or view.num_devices
    starts = _within_groups(list(map(_num_ranks, stages)), size, view.num_devices)
    ways = dict.fromkeys([places_of(stages), places_of(stages, starts)])
    return [places for places in ways if _has_no_gap(places)]


def _has_no_gap(places: Sequence[StagePlacement]) -> bool:
    """Whether the ranks of a plan are numbered from 0 on: those that stay idle are the last."""
    used = {rank for place in places for rank in place.ranks}
    return used == set(range(len(used)))


def _within_groups(sizes: Sequence[int], group: int, num_devices: int) -> list[int]:
    """Return the first rank of each stage: larger ones first, each where least is left; none where one has no room."""
    large = [number for number, size in enumerate(sizes) if size > group]
    starts = dict(zip(large, accumulate((sizes[i] for i in large), initial=0), strict=False))
    used = sum(sizes[i] for i in large)
    bounds = [used, *range(-(-used // group) * group, num_devices, group), num_devices]
    free = [[start, stop] for start, stop in pairwise(dict.fromkeys(bounds))]
    for number in sorted(set(range(len(sizes))) - set(large), key=lambda i: (-sizes[i], i)):
        room = [each for each in free if each[1] - each[0] >= sizes[number]]
        if not room:
            return []
        chosen = min(room, key=lambda each: each[1] - each[0])
        starts[number] = chosen[0]
        chosen[0] += sizes[number]
    return [starts[number] for number in range(len(sizes))]


def _num_ranks(stage: ProposedStage) -> int:
    return stage.config.data * stage.config.tensor * stage.config.context
