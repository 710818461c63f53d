"""What the sweeps of `zb-auto` work on: a stage graph, one stage a rank, as plain lists of integers.

Stages are renumbered by their position in the topological (index) order, so that a sweep from the last to
the first meets every successor before its predecessors. Actions are counted, not micro-batches: all
stages take equally many in one action.
"""

from dataclasses import dataclass, replace

from costmodel.errors import NoPlanFits, UsageError
from costmodel.stages.costs import Costs, StageCost, at, largest
from simulator.schedule import StageGraph

Links = tuple[tuple[int, int], ...]
"""Places at the other ends of edges, each with its delay in ns."""


@dataclass(frozen=True, slots=True)
class PositionCosts:
    """Costs by position and action.

    Attributes
    ----------
    stages : tuple of int
        The stage at each position.
    num_actions : int
        Forwards of each stage.
    forward, backward_input, backward_weight : tuple of tuple of int
        Times in ns; recompute counts to I.
    activation, kept : tuple of tuple of int
        Bytes taken by F, and the part of them that stays from I until W.
    room : tuple of int
        Bytes that activations may take; one message in flight over each edge and direction is set aside.
    sources, targets, gradient_targets : tuple of Links
        Edges in, edges out, and those of them over which a gradient comes back.
    level : tuple of int
        Edges on the longest path from a source.
    backward : tuple of bool
        Whether the stage has a backward.
    forward_ends : tuple of tuple of int
        When every forward would end if there were nothing else to do.
    """

    stages: tuple[int, ...]
    num_actions: int
    forward: tuple[tuple[int, ...], ...]
    backward_input: tuple[tuple[int, ...], ...]
    backward_weight: tuple[tuple[int, ...], ...]
    activation: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[int, ...], ...]
    room: tuple[int, ...]
    sources: tuple[Links, ...]
    targets: tuple[Links, ...]
    gradient_targets: tuple[Links, ...]
    level: tuple[int, ...]
    backward: tuple[bool, ...]
    forward_ends: tuple[tuple[int, ...], ...]

    @property
    def num_positions(self) -> int:
        """How many stages there are."""
        return len(self.stages)

    def work_ns(self, position: int) -> int:
        """Compute of one rank."""
        work = sum(self.forward[position])
        if self.backward[position]:
            work += sum(self.backward_input[position]) + sum(self.backward_weight[position])
        return work

    def cut(self, num_actions: int) -> "PositionCosts":
        """Return the same pipeline with its first `num_actions` actions alone."""
        names = ("forward", "backward_input", "backward_weight", "activation", "kept", "forward_ends")
        short = {name: tuple(row[:num_actions] for row in getattr(self, name)) for name in names}
        return replace(self, num_actions=num_actions, **short)


def pipeline(
    name: str, costs: Costs, graph: StageGraph, num_microbatches: int, limit_bytes: int | None
) -> PositionCosts:
    """Lay out a stage graph for the sweeps.

    Parameters
    ----------
    limit_bytes : int or None
        Most bytes that a rank may hold, static part included. By default twice what 1F1B needs at most.

    Raises
    ------
    UsageError
        When a rank has several stages or a stage several ranks, or stages take unequal micro-batches at once.
    NoPlanFits
        When a rank cannot hold one activation.
    """
    if len(set(graph.multiples)) > 1 or sorted(graph.ranks) != [(rank,) for rank in range(graph.num_stages)]:
        raise UsageError(
            f"{name} runs one stage a rank without replicas, all taking equally many micro-batches in one action; "
            "take a schedule with graph placement for other stage graphs"
        )
    stages = graph.order
    num_actions = num_microbatches // graph.multiples[0]
    rows = [costs.stages[stage] for stage in stages]
    sources, targets, gradient_targets = _links(costs, graph)
    forward = _table(rows, "forward_ns", num_actions)
    input_alone, again = (_table(rows, name, num_actions) for name in ("backward_input_ns", "recompute_ns"))
    return PositionCosts(
        stages,
        num_actions,
        forward,
        tuple(tuple(map(sum, zip(*pair, strict=True))) for pair in zip(input_alone, again, strict=True)),
        _table(rows, "backward_weight_ns", num_actions),
        _table(rows, "activation_bytes", num_actions),
        _table(rows, "weight_activation_bytes", num_actions),
        _room(name, stages, rows, _buffers(costs, stages), limit_bytes),
        sources,
        targets,
        gradient_targets,
        _levels(sources),
        tuple(graph.backward[stage] for stage in stages),
        _back_to_back(forward, sources),
    )


def _table(rows: list[StageCost], name: str, num_actions: int) -> tuple[tuple[int, ...], ...]:
    """Return one amount of every stage, action by action."""
    return tuple(tuple(at(getattr(cost, name), index) for index in range(num_actions)) for cost in rows)


def _levels(sources: tuple[Links, ...]) -> tuple[int, ...]:
    level: list[int] = []
    for incoming in sources:
        level.append(max((level[source] + 1 for source, _ in incoming), default=0))
    return tuple(level)


def _links(costs: Costs, graph: StageGraph) -> tuple[tuple[Links, ...], tuple[Links, ...], tuple[Links, ...]]:
    position = {stage: index for index, stage in enumerate(graph.order)}
    sources: list[list[tuple[int, int]]] = [[] for _ in position]
    targets: list[list[tuple[int, int]]] = [[] for _ in position]
    gradients: list[list[tuple[int, int]]] = [[] for _ in position]
    for edge in costs.edges:
        source, target = position[edge.source], position[edge.target]
        sources[target].append((source, edge.p2p_ns))
        targets[source].append((target, edge.p2p_ns))
        if edge.gradient and graph.backward[edge.source] and graph.backward[edge.target]:
            gradients[source].append((target, edge.p2p_ns))
    frozen = tuple(tuple(tuple(sorted(row)) for row in rows) for rows in (sources, targets, gradients))
    return frozen[0], frozen[1], frozen[2]


def _buffers(costs: Costs, stages: tuple[int, ...]) -> list[int]:
    """Return the bytes of one message over each edge of a stage, there and back."""
    return [2 * sum(e.size_bytes for e in costs.edges if stage in (e.source, e.target)) for stage in stages]


def _room(
    name: str, stages: tuple[int, ...], rows: list[StageCost], buffers: list[int], limit_bytes: int | None
) -> tuple[int, ...]:
    most = [largest(cost.activation_bytes) for cost in rows]
    if limit_bytes is None:
        return (2 * len(stages) * max(most),) * len(stages)
    room = []
    for stage, cost, activation, buffer in zip(stages, rows, most, buffers, strict=True):
        missing = cost.static_bytes + buffer + activation - limit_bytes
        if missing > 0:
            raise NoPlanFits(
                f"{name}: stage {stage} needs {cost.static_bytes} bytes, {buffer} for messages and {activation} for "
                f"one activation, {missing} more than the limit of {limit_bytes}; raise the limit or cut smaller stages"
            )
        room.append(limit_bytes - cost.static_bytes - buffer)
    return tuple(room)


def _back_to_back(forward: tuple[tuple[int, ...], ...], sources: tuple[Links, ...]) -> tuple[tuple[int, ...], ...]:
    ends: list[tuple[int, ...]] = []
    for times, incoming in zip(forward, sources, strict=True):
        now, row = 0, []
        for index, time_ns in enumerate(times):
            arrival = max((ends[source][index] + delay for source, delay in incoming), default=0)
            now = max(now, arrival) + time_ns
            row.append(now)
        ends.append(tuple(row))
    return tuple(ends)
