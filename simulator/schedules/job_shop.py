"""The actions of one step as numbered jobs with times, bytes and what they wait for: what a search of orders works on.

A stage's jobs of one kind on one rank form a queue and run by rising micro-batch; an order of a rank interleaves its
queues. Memory is taken at a forward's start and freed at the end of I, W or B, so what a rank holds depends on its own
order alone. R runs inside of I and B. Leaves out the buffers of messages, modes of links, and slices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import lcm
from typing import Any

from costmodel.errors import NoPlanFits
from costmodel.stages.costs import Costs, StageCost, at
from simulator.actions import Action, Kind, parse_action
from simulator.dependencies import needs
from simulator.schedule import Schedule, StageGraph

Needs = tuple[tuple[tuple[int, int], ...], ...]
"""For each job the jobs that it waits for, each with the delay of the message in ns."""
Sequences = tuple[tuple[int, ...], ...]
"""For each rank its jobs in order."""


@dataclass(frozen=True, slots=True)
class JobShop:
    """The jobs of a step; every tuple but the last three has one entry a job.

    Attributes
    ----------
    actions : tuple of Action
    rank : tuple of int
    duration_ns : tuple of int
    after_ns : tuple of int
        What has to follow at least: REDUCE and OPT of the stage.
    needs, feeds : Needs
    take, free : tuple of int
        Bytes taken at the start and freed at the end.
    unit : tuple of int
        The range of micro-batches that it belongs to, one after which all stages meet again.
    room : tuple of int
        Bytes in addition to the static part that each rank may hold.
    queues : tuple of tuple of tuple of int
        For each rank its queues of jobs.
    """

    actions: tuple[Action, ...]
    rank: tuple[int, ...]
    duration_ns: tuple[int, ...]
    after_ns: tuple[int, ...]
    needs: Needs
    feeds: Needs
    take: tuple[int, ...]
    free: tuple[int, ...]
    unit: tuple[int, ...]
    room: tuple[int, ...]
    queues: tuple[Sequences, ...]

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.room)

    def sequences(self, orders: Sequence[Sequence[Action]]) -> Sequences:
        """Return the numbers of the actions of orders."""
        number = {action: job for job, action in enumerate(self.actions)}
        return tuple(tuple(number[action] for action in order) for order in orders)

    def orders(self, sequences: Sequence[Sequence[int]]) -> tuple[tuple[Action, ...], ...]:
        """Return the actions of sequences."""
        return tuple(tuple(self.actions[job] for job in row) for row in sequences)


def job_shop_of(
    costs: Costs, graph: StageGraph, num_microbatches: int, limit_bytes: int | None, *, split: bool
) -> JobShop:
    """Return the numbered actions of a step.

    Parameters
    ----------
    limit_bytes : int or None
        What each rank may hold, static part included.
    split : bool
        Whether backwards are I and W, or B.

    Raises
    ------
    NoPlanFits
        When a rank has no room for the activation of one action.
    """
    queues = _queues(graph, num_microbatches, (Kind.F, Kind.I, Kind.W) if split else (Kind.F, Kind.B))
    actions = tuple(action for rank in queues for queue in rank for action in queue)
    number = {action: job for job, action in enumerate(actions)}
    by_rank = tuple(tuple(tuple(number[a] for a in queue) for queue in rank) for rank in queues)
    rank = tuple(r for r, row in enumerate(queues) for queue in row for _ in queue)
    p2p_ns = {ends: e.p2p_ns for e in costs.edges for ends in ((e.source, e.target), (e.target, e.source))}
    waits: list[tuple[tuple[int, int], ...]] = []
    feeds: list[list[tuple[int, int]]] = [[] for _ in actions]
    orders = tuple(tuple(a for queue in row for a in queue) for row in queues)
    for action, others in needs(Schedule("jobs", graph, num_microbatches, orders)).items():
        job = number[action]
        found = [(o := number[x], p2p_ns[x.stage, action.stage] if rank[o] != rank[job] else 0) for x in others]
        waits.append(tuple(found))
        for other, delay in found:
            feeds[other].append((job, delay))
    bytes_of = [_bytes(costs.stages[a.stage], a, graph) for a in actions]
    period = lcm(*graph.multiples)
    take, free = tuple(taken for taken, _ in bytes_of), tuple(freed for _, freed in bytes_of)
    return JobShop(
        actions,
        rank,
        tuple(_duration_ns(costs.stages[a.stage], a, graph) for a in actions),
        tuple(0 if a.kind is Kind.F else _after_ns(costs.stages[a.stage]) for a in actions),
        tuple(waits),
        tuple(map(tuple, feeds)),
        take,
        free,
        tuple(action.microbatch // period for action in actions),
        _room(costs, graph, limit_bytes, rank, take),
        by_rank,
    )


def job_shop_to_json(jobs: JobShop) -> dict[str, Any]:
    """Return what `job_shop_from_json` reads."""
    body = {field.name: getattr(jobs, field.name) for field in fields(jobs)}
    return body | {"actions": [str(action) for action in jobs.actions]}


def job_shop_from_json(body: dict[str, Any]) -> JobShop:
    """Return jobs from what `job_shop_to_json` made."""
    return JobShop(**body | {"actions": tuple(map(parse_action, body["actions"]))})


def _queues(graph: StageGraph, num_microbatches: int, kinds: Sequence[Kind]) -> list[list[list[Action]]]:
    found = []
    for rank in range(graph.num_ranks):
        row = []
        for stage in graph.stages_of(rank):
            mine = graph.microbatches_of(stage, rank, num_microbatches)
            row += [[Action(kind, stage, k) for k in mine] for kind in (kinds if graph.backward[stage] else kinds[:1])]
        found.append([queue for queue in row if queue])
    return found


def _duration_ns(cost: StageCost, action: Action, graph: StageGraph) -> int:
    index = action.microbatch // graph.multiples[action.stage]
    weight_ns = at(cost.backward_weight_ns, index)
    input_ns = at(cost.recompute_ns, index) + at(cost.backward_input_ns, index)
    return {Kind.F: at(cost.forward_ns, index), Kind.I: input_ns, Kind.W: weight_ns, Kind.B: input_ns + weight_ns}[
        action.kind
    ]


def _bytes(cost: StageCost, action: Action, graph: StageGraph) -> tuple[int, int]:
    index = action.microbatch // graph.multiples[action.stage]
    whole, kept = at(cost.activation_bytes, index), at(cost.weight_activation_bytes, index)
    if action.kind is Kind.F:
        return whole, 0 if cost.backward else whole
    return 0, {Kind.I: whole - kept, Kind.W: kept, Kind.B: whole}[action.kind]


def _after_ns(cost: StageCost) -> int:
    return cost.reduce_ns + cost.optimizer_ns


def _room(
    costs: Costs, graph: StageGraph, limit_bytes: int | None, rank: Sequence[int], take: Sequence[int]
) -> tuple[int, ...]:
    """Return what each rank may hold in addition to its static part."""
    if limit_bytes is None:
        return (sum(take),) * graph.num_ranks
    room = [limit_bytes] * graph.num_ranks
    for stage, ranks in enumerate(graph.ranks):
        for one in ranks:
            room[one] -= costs.stages[stage].static_bytes
    most = [max((t for t, r in zip(take, rank, strict=True) if r == one), default=0) for one in range(graph.num_ranks)]
    short = max((needed - given, one) for one, (needed, given) in enumerate(zip(most, room, strict=True)))
    if short[0] > 0:
        raise NoPlanFits(
            f"rank {short[1]} needs {limit_bytes + short[0]} bytes for one action's activation and its static part, "
            f"{short[0]} more than the limit of {limit_bytes}; raise --memory-limit"
        )
    return tuple(room)
