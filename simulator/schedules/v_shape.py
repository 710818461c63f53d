"""What `zb-v`, `v-half` and `v-min` work on: a line of 2 p stages folded onto p ranks, laid out.

Rank r has the stages r and 2 p - 1 - r, so the last stage is on the first rank and one half of the activations
is short-lived where the other is long-lived. Times are those of a stage's average action; memory counts its
largest. One message over each edge and direction is set aside. Orders are lists of (kind, stage): the n-th
F of a stage is that of its n-th action.
"""

from costmodel.errors import NoPlanFits
from costmodel.stages.costs import Amount, StageCost, largest
from simulator.schedules.kind import Orders, Request
from simulator.schedules.placement import wave
from simulator.schedules.split_stages import Row, SplitStages, split_stages


def v_shape(name: str, request: Request, shares: float | None) -> SplitStages:
    """Lay out a V-shaped schedule.

    Parameters
    ----------
    shares : float or None
        Activation shares that a rank may hold; None for what the request's memory limit leaves (p by default).

    Raises
    ------
    UsageError
        When the stages are not placed in a wave of two, or have replicas.
    NoPlanFits
        When a rank cannot hold one activation of each of its stages.
    """
    places = wave(name, request.graph, request.num_microbatches, 2)
    p, costs = places[0].num_positions, request.costs
    stages = costs.stages
    between = {(e.source, e.target): e for e in costs.edges}
    edges = [between.get((stage, stage + 1)) for stage in range(2 * p - 1)]
    activation = tuple(largest(cost.activation_bytes) for cost in stages)
    room = []
    for r in range(p):
        pair = activation[r] + activation[2 * p - 1 - r]
        if shares is None and request.memory_limit_bytes is not None:
            buffers = 2 * sum(
                e.size_bytes
                for e in costs.edges
                if (e.source in (r, 2 * p - 1 - r)) != (e.target in (r, 2 * p - 1 - r))
            )
            room.append(request.memory_limit_bytes - buffers - sum(stages[s].static_bytes for s in (r, 2 * p - 1 - r)))
        else:
            room.append(int((p if shares is None else shares) * pair))
        if room[r] < pair:
            raise NoPlanFits(
                f"{name}: rank {r} has {room[r]} bytes for activations and needs {pair} for one micro-batch of its two "
                f"stages, {pair - room[r]} more; raise the limit or cut smaller stages"
            )
    even = [
        StageCost(
            _mean(cost.forward_ns), _mean(cost.backward_input_ns), _mean(cost.backward_weight_ns),
            _mean(cost.recompute_ns), activation_bytes=activation[stage],
            weight_activation_bytes=largest(cost.weight_activation_bytes),
        )
        for stage, cost in enumerate(stages)
    ]  # fmt: skip
    delays = [0 if stage == p - 1 or edge is None else edge.p2p_ns for stage, edge in enumerate(edges)]
    links = [(stage, stage + 1, delay, True) for stage, delay in enumerate(delays)]
    rank = [min(stage, 2 * p - 1 - stage) for stage in range(2 * p)]
    return split_stages(range(2 * p), rank, len(places[0].microbatches), even, room, links)


def as_orders(request: Request, v_shape: SplitStages, rows: tuple[Row, ...]) -> Orders:
    """Return the actions that rows by place represent, on every replica."""
    places = wave("a V-shaped schedule", request.graph, request.num_microbatches, 2)
    return tuple(v_shape.actions(rows[place.position], place.microbatches) for place in places)


def _mean(amount: Amount) -> int:
    return amount if isinstance(amount, int) else sum(amount) // len(amount)
