"""Plans for tests without a search: operators dealt to stages, one price for every action, a schedule by name."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from costmodel.capture.capture import Capture, operator_graph
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import GIB, DeviceType, Host, LinkGroup
from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from executor.gradients.reduction import stages_of_parameters
from planner.candidate.gathering import with_gathering
from planner.plan import (
    MICROBATCH,
    REDUCE_SCATTER,
    STEP,
    Batch,
    Plan,
    PlanEdge,
    PlanStage,
    Prediction,
    SearchResult,
    Training,
)
from simulator.actions import Action, Kind
from simulator.engine import simulate
from simulator.lowering import close_step, lower
from simulator.schedule import Schedule
from simulator.schedules import build_schedule

Edges = dict[tuple[int, int], dict[str, None]]


def in_equal_runs(operators: Sequence[str], num_stages: int) -> list[list[str]]:
    """Cut a list of operators into runs of about equal length."""
    bounds = [round(i * len(operators) / num_stages) for i in range(num_stages + 1)]
    return [list(operators[a:b]) for a, b in itertools.pairwise(bounds)]


def tensors_between(graph: OperatorGraph, stage_of: dict[str, int], relay: bool) -> Edges:
    """Tensors of each edge; with `relay` they are handed on from stage to stage."""
    edges: Edges = {}
    for tensor in graph.tensors:
        source = stage_of[tensor.producer]
        targets = {stage_of[c] for c in tensor.consumers} - {source}
        hops = [(s, s + 1) for s in range(source, max(targets, default=source))] if relay else []
        for ends in hops or [(source, target) for target in sorted(targets)]:
            edges.setdefault(ends, {})[tensor.name] = None
    return edges


def reduced_stages(owned: Sequence[set[str]], costs: Costs) -> list[bool]:
    """Stages with a backward that have replicas or share a parameter with another rank's stage."""
    shared = [len(ranks) > 1 for ranks in costs.ranks]
    for stages in stages_of_parameters(owned).values():
        if len({rank for stage in stages for rank in costs.ranks[stage]}) > 1:
            for stage in stages:
                shared[stage] = True
    return [flag and stage.backward for flag, stage in zip(shared, costs.stages, strict=True)]


def split_backwards(costs: Costs, num_microbatches: int, lag: int = 1) -> Schedule:
    """graph-1f1b with each B as I, and W `lag` backwards later."""
    fused = build_schedule("graph-1f1b", costs, num_microbatches)
    return replace(fused, name="by-hand", orders=tuple(_split(order, lag) for order in fused.orders))


def _split(order: Sequence[Action], lag: int) -> tuple[Action, ...]:
    done: list[Action] = []
    late: list[Action] = []
    for action in order:
        if action.kind is not Kind.B:
            done.append(action)
            continue
        done.append(replace(action, kind=Kind.I))
        late.append(replace(action, kind=Kind.W))
        if len(late) > lag:
            done.append(late.pop(0))
    return (*done, *late)


def with_recompute(costs: Costs, num_microbatches: int) -> Schedule:
    """graph-1f1b with R before each B of every other stage."""
    fused = build_schedule("graph-1f1b", costs, num_microbatches)
    orders = tuple(
        tuple(
            step
            for action in order
            for step in (
                (replace(action, kind=Kind.R), action) if action.kind is Kind.B and action.stage % 2 == 0 else (action,)
            )
        )
        for order in fused.orders
    )
    return replace(fused, name="by-hand", orders=orders)


def plan_by_hand(
    capture: Capture,
    groups: Sequence[Sequence[str]],
    *,
    ranks: Sequence[tuple[int, ...]] | None = None,
    num_microbatches: int = 4,
    microbatch_size: int = 2,
    schedule: str | Callable[[Costs, int], Schedule] = "graph-1f1b",
    multiples: Sequence[int] | None = None,
    relay: bool = False,
    optimizer: str | None = None,
    configs: Sequence[StageConfig] | None = None,
    durations_ns: int = 1000,
    reduce: str = MICROBATCH,
) -> Plan:
    graph = operator_graph(capture, (microbatch_size,))
    stage_of = {name: s for s, names in enumerate(groups) for name in names}
    edges = tensors_between(graph, stage_of, relay)
    costs = _costs(graph, groups, edges, ranks, multiples, durations_ns)
    build = schedule if callable(schedule) else partial(build_schedule, schedule)
    built = build(costs, num_microbatches)
    closed = close_step(built, reduced_stages(_owned(graph, groups), costs), optimizer is not None)
    lowered = lower(closed, simulate(closed, costs))
    timeline = simulate(lowered, costs)
    configs = configs or [StageConfig(data=len(row)) for row in costs.ranks]
    stages = [
        with_gathering(
            stage,
            graph,
            [graph.index[name] for name in stage.operators],
            num_microbatches // len(stage.ranks),
            [tensor.size_bytes[0] for tensor in graph.tensors],
        )
        for stage in map(PlanStage, map(tuple, groups), costs.ranks, costs.stages, configs, costs.multiples)
    ]
    memory, num_ranks = timeline.peak_memory_bytes, costs.num_ranks
    return Plan(
        capture.model.name,
        graph.fingerprint,
        len(graph.operators),
        Cluster((DeviceType("cpu", 64 * GIB, "cpu"),), (Host("cpu", num_ranks),), (LinkGroup("local", 0, 1.0, 20000),)),
        Batch(num_microbatches * microbatch_size, microbatch_size, num_microbatches),
        built.name,
        tuple(stage if reduce == MICROBATCH else _summed_once(stage, num_microbatches) for stage in stages),
        tuple(PlanEdge(e.source, e.target, tuple(edges[e.source, e.target]), 0, 0, e.gradient) for e in costs.edges),
        tuple(tuple(map(str, order)) for order in lowered.orders),
        Prediction(timeline.step_time_ns, timeline.span_ns, timeline.bubble_ratio, memory, memory),
        SearchResult("heuristic", timeline.step_time_ns, 0, "none", {}, timeline.step_time_ns),
        ("executor",),
        Training(optimizer=optimizer or "none"),
    )


def _summed_once(stage: PlanStage, num_microbatches: int) -> PlanStage:
    """Let a stage sum its gradients once a step."""
    actions = num_microbatches // len(stage.ranks)
    summed = [
        replace(each, count=each.count // actions, size_bytes=each.size_bytes // actions)
        if each.kind == REDUCE_SCATTER
        else each
        for each in stage.collectives
    ]
    return replace(stage, reduce=STEP, collectives=tuple(summed))


def _costs(
    graph: OperatorGraph,
    groups: Sequence[Sequence[str]],
    edges: Edges,
    ranks: Sequence[tuple[int, ...]] | None,
    multiples: Sequence[int] | None,
    durations_ns: int,
) -> Costs:
    by_name = {tensor.name: tensor for tensor in graph.tensors}
    trainable = {o.name: o.trainable for o in graph.operators}
    one = StageCost(durations_ns, durations_ns, durations_ns)
    return Costs(
        tuple(replace(one, backward=any(trainable[name] for name in names)) for names in groups),
        tuple(EdgeCost(a, b, 0, 0, any(by_name[n].gradient for n in names)) for (a, b), names in sorted(edges.items())),
        tuple(ranks or [(s,) for s in range(len(groups))]),
        tuple(multiples or [1] * len(groups)),
    )


def _owned(graph: OperatorGraph, groups: Sequence[Sequence[str]]) -> list[set[str]]:
    """Trainable parameters that each stage reads."""
    trainable = {p.name for p in graph.parameters if p.trainable}
    return [
        trainable & {p for name in names for p in graph.operators[graph.index[name]].parameters} for names in groups
    ]


def with_lanes(plan: Plan, tensor: Sequence[int], expert_tensor: int = 0) -> Plan:
    """Put each replica of stage s on ``tensor[s]`` ranks, which do the same; every rank has one stage."""
    sizes = {rank: tensor[s] for s, stage in enumerate(plan.stages) for rank in stage.ranks}
    ends = list(accumulate(sizes[rank] for rank in sorted(sizes)))
    block = {rank: tuple(range(end - sizes[rank], end)) for rank, end in zip(sorted(sizes), ends, strict=True)}

    def spread(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[rank] for rank in sorted(sizes) for _ in block[rank])

    known = plan.prediction
    return replace(
        plan,
        cluster=replace(plan.cluster, hosts=(Host("cpu", ends[-1]),)),
        stages=tuple(
            replace(
                stage,
                ranks=tuple(rank for lead in stage.ranks for rank in block[lead]),
                config=replace(stage.config, tensor=tensor[s], expert_tensor=expert_tensor),
            )
            for s, stage in enumerate(plan.stages)
        ),
        orders=spread(plan.orders),
        runs_on=(),
        prediction=replace(
            known,
            peak_memory_bytes=spread(known.peak_memory_bytes),
            peak_memory_upper_bytes=spread(known.peak_memory_upper_bytes),
        ),
    )
