"""What stages with given ranks cost: replicas, several stages a rank, multiples, recompute, ZeRO-1.

An action of k micro-batches is priced as one micro-batch k times as large. A stage that recomputes runs its
forward once more; its memory follows from R in the orders. ZeRO-1 keeps an even share of the optimizer's state
on each replica, which gather the stepped parameters in half the time of an all-reduce. Messages between different
ranks take host time at both ends; where replicas make some of a stage's messages stay on a rank, its actions differ.
Leaves out orders.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from costmodel.machines.collectives import all_reduce_ns
from costmodel.model.graph import OperatorGraph, Tensor
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from costmodel.stages.measured import OPTIMIZER_STATES, CostModel
from planner.pricing import Layout, with_host_time
from planner.problem import Problem

Ends = tuple[tuple[int, int], ...]
"""Stage and number of the action at the two ends of a message."""

Flows = Mapping[tuple[int, int], Sequence[int]]
"""Positions of the tensors on each edge of the stage graph."""


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """A stage before it is priced: positions of its operators, ranks, configuration, micro-batches an action."""

    operators: tuple[int, ...]
    ranks: tuple[int, ...]
    config: StageConfig
    microbatch_multiple: int = 1


def flows_between(graph: OperatorGraph, stages: Sequence[PlacedStage], in_line: bool = False) -> Flows:
    """Return the tensors on each edge, every one sent straight to each stage that reads it.

    With `in_line` it passes through all stages up to the last that reads it; stages are in a topological order.
    """
    stage_of = {graph.operators[i].name: s for s, stage in enumerate(stages) for i in stage.operators}
    found: dict[tuple[int, int], list[int]] = {}
    for position, tensor in enumerate(graph.tensors):
        source = stage_of[tensor.producer]
        targets = {stage_of[name] for name in tensor.consumers}
        ways = [(source, target) for target in sorted(targets - {source})]
        for way in pairwise(range(source, max(targets, default=source) + 1)) if in_line else ways:
            found.setdefault(way, []).append(position)
    return dict(sorted(found.items()))


def price(problem: Problem, microbatch_size: int, stages: Sequence[PlacedStage], in_line: bool = False) -> Layout:
    """Price placed stages at one micro-batch size; `in_line` as in `flows_between`."""
    graph = problem.profile.graph
    flows = flows_between(graph, stages, in_line)
    edges = tuple(_edge(problem, microbatch_size, stages, ends, row) for ends, row in flows.items())
    returns = {stage for edge in edges if edge.gradient for stage in (edge.source, edge.target)}
    costs = []
    for index, stage in enumerate(stages):
        received = sorted({t for (_, target), row in flows.items() if target == index for t in row})
        model = problem.cost_model(microbatch_size * stage.microbatch_multiple)
        costs.append(_stage(model, stage, [graph.tensors[t] for t in received], index in returns))
    model = problem.cost_model(microbatch_size)
    reduces, reduce_ns = _reductions(model, stages, [cost.backward for cost in costs])
    priced = tuple(replace(cost, reduce_ns=ns) for cost, ns in zip(costs, reduce_ns, strict=True))
    whole = Costs(priced, edges, tuple(s.ranks for s in stages), tuple(s.microbatch_multiple for s in stages))
    return Layout(
        tuple(stage.operators for stage in stages),
        tuple(map(tuple, flows.values())),
        _with_host_time(problem, microbatch_size, whole, flows),
        reduces,
    )


def _stage(model: CostModel, stage: PlacedStage, received: Iterable[Tensor], returns: bool) -> StageCost:
    cost = model.stage(stage.operators, received)
    cost = replace(cost, backward=cost.backward or returns)
    if stage.config.recompute == "full" and cost.backward:
        cost = replace(cost, recompute_ns=cost.forward_ns)
    return _divided(model, stage, cost) if stage.config.zero == 1 else cost


def _divided(model: CostModel, stage: PlacedStage, cost: StageCost) -> StageCost:
    """Divide the optimizer's state and step among the replicas (ZeRO-1)."""
    replicas, terms = len(stage.ranks), dict(cost.memory_terms)
    if replicas == 1 or model.optimizer == "none":
        return cost
    terms["optimizer"] = OPTIMIZER_STATES[model.optimizer] * -(-terms["gradients"] // replicas)
    gather_ns = -(-all_reduce_ns(model.cluster, stage.ranks, terms["gradients"]) // 2)
    return replace(
        cost,
        static_bytes=sum(terms.values()),
        memory_terms=tuple(terms.items()),
        optimizer_ns=-(-cost.optimizer_ns // replicas) + gather_ns,
    )


def _edge(
    problem: Problem, microbatch_size: int, stages: Sequence[PlacedStage], ends: tuple[int, int], row: Sequence[int]
) -> EdgeCost:
    """Price an edge by what one action of its source sends, over the slowest link between the two stages' ranks."""
    source, target = stages[ends[0]], stages[ends[1]]
    model = problem.cost_model(microbatch_size * source.microbatch_multiple)
    tensors = [problem.profile.graph.tensors[t] for t in row]
    size = sum(model.tensor_bytes(tensor) for tensor in tensors)
    p2p_ns = max(model.p2p_ns(mine, theirs, size) for mine in source.ranks for theirs in target.ranks)
    return EdgeCost(*ends, p2p_ns, size, any(tensor.gradient for tensor in tensors))


def _with_host_time(problem: Problem, microbatch_size: int, costs: Costs, flows: Flows) -> Costs:
    """Add to F and I of each stage what the messages of each of its actions take."""
    num_microbatches = problem.global_batch // microbatch_size
    forward = [[0] * -(-num_microbatches // multiple) for multiple in costs.multiples]
    backward = [row.copy() for row in forward]
    tensors = problem.profile.graph.tensors
    models = {count: problem.cost_model(microbatch_size * count) for count in range(1, max(costs.multiples) + 1)}
    for edge, carried in zip(costs.edges, flows.values(), strict=True):
        row = [tensors[t] for t in carried]
        back = [tensor for tensor in row if tensor.gradient]
        for groups, count in _messages(costs, edge, num_microbatches):
            sender, receiver = (_rank_of(costs, stage, group) for stage, group in groups)
            there_ns = models[count].host_ns(sender, receiver, row)
            back_ns = models[count].host_ns(sender, receiver, back) if back else 0
            for stage, group in groups:
                forward[stage][group] += there_ns
                backward[stage][group] += back_ns
    return replace(costs, stages=tuple(map(with_host_time, costs.stages, forward, backward)))


def _messages(costs: Costs, edge: EdgeCost, num_microbatches: int) -> Iterator[tuple[Ends, int]]:
    """Yield each message of an edge: its action's stage and number at both ends, and the micro-batches in it."""
    ends = (edge.source, edge.target)
    sizes = [costs.multiples[stage] for stage in ends]
    first = 0
    while first < num_microbatches:
        groups = [first // size for size in sizes]
        stop = min((group + 1) * size for group, size in zip(groups, sizes, strict=True))
        yield tuple(zip(ends, groups, strict=True)), stop - first
        first = stop


def _rank_of(costs: Costs, stage: int, group: int) -> int:
    return costs.ranks[stage][group % len(costs.ranks[stage])]


def _reductions(
    model: CostModel, stages: Sequence[PlacedStage], backward: Sequence[bool]
) -> tuple[tuple[bool, ...], list[int]]:
    """Return whether and how long each stage sums gradients: one all-reduce a set of stages with common parameters."""
    graph = model.profile.graph
    owners: dict[str, set[int]] = {}
    for index, stage in enumerate(stages):
        for position in stage.operators:
            for name in graph.operators[position].parameters:
                if graph.parameter_index[name].trainable:
                    owners.setdefault(name, set()).add(index)
    sizes: dict[tuple[int, ...], int] = {}
    for name, found in owners.items():
        key = tuple(sorted(found))
        sizes[key] = sizes.get(key, 0) + graph.parameter_index[name].size_bytes
    reduces, reduce_ns = [len(stage.ranks) > 1 for stage in stages], [0] * len(stages)
    for members, size in sizes.items():
        ranks = tuple(sorted({rank for member in members for rank in stages[member].ranks}))
        if len(ranks) > 1:
            for member in members:
                reduces[member] = True
                reduce_ns[member] += all_reduce_ns(model.cluster, ranks, size)
    flags = tuple(flag and back for flag, back in zip(reduces, backward, strict=True))
    return flags, [ns if flag else 0 for ns, flag in zip(reduce_ns, flags, strict=True)]
