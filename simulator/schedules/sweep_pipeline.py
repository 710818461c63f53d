"""A stage graph with one stage a rank as `zb-auto` takes it: what it refuses, what memory leaves for activations."""

from collections.abc import Sequence

from costmodel.errors import NoPlanFits, UsageError
from costmodel.stages.costs import Costs, StageCost, largest
from simulator.schedule import StageGraph
from simulator.schedules.split_stages import SplitStages, split_stages


def pipeline(name: str, costs: Costs, graph: StageGraph, num_microbatches: int, limit_bytes: int | None) -> SplitStages:
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
    place = {stage: position for position, stage in enumerate(stages)}
    edges = [
        (
            place[e.source],
            place[e.target],
            e.p2p_ns,
            e.gradient and graph.backward[e.source] and graph.backward[e.target],
        )
        for e in costs.edges
    ]
    rows = [costs.stages[stage] for stage in stages]
    # One message over each edge of a stage, there and back.
    buffers = [2 * sum(e.size_bytes for e in costs.edges if stage in (e.source, e.target)) for stage in stages]
    room = _room(name, stages, rows, buffers, limit_bytes)
    return split_stages(stages, range(len(stages)), num_microbatches // graph.multiples[0], rows, room, edges)


def _room(
    name: str, stages: Sequence[int], rows: list[StageCost], buffers: list[int], limit_bytes: int | None
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
