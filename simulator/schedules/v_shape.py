"""What `zb-v`, `v-half` and `v-min` work on: a line of 2 p stages folded onto p ranks, as plain lists.

Rank r has the stages r and 2 p - 1 - r, so the last stage is on the first rank and one half of the activations
is short-lived where the other is long-lived. Times are those of a stage's average action; memory counts its
largest. One message over each edge and direction is set aside. Orders are lists of (kind, stage): the n-th
F of a stage is that of its n-th action.
"""

from dataclasses import dataclass, replace

from costmodel.errors import NoPlanFits
from costmodel.stages.costs import Amount, largest
from simulator.actions import Action, Kind
from simulator.schedules.kind import Orders, Request
from simulator.schedules.placement import wave

Row = list[tuple[str, int]]
"""The order of one rank: kind and stage of each action."""


@dataclass(frozen=True, slots=True)
class VShape:
    """Costs by stage.

    Attributes
    ----------
    num_ranks, num_actions : int
        p, and the forwards of each stage.
    time : dict of str to tuple of int
        ns of "F", "I" and "W" of each stage; recompute counts to I.
    delay : tuple of int
        ns from each stage to the next and back, 0 inside a rank.
    activation, kept : tuple of int
        Bytes that F takes, and the part of them that stays from I until W.
    room : tuple of int
        Bytes for activations on each rank.
    """

    num_ranks: int
    num_actions: int
    time: dict[str, tuple[int, ...]]
    delay: tuple[int, ...]
    activation: tuple[int, ...]
    kept: tuple[int, ...]
    room: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        """2 p."""
        return 2 * self.num_ranks

    def rank(self, stage: int) -> int:
        """Return the rank of a stage."""
        return stage if stage < self.num_ranks else 2 * self.num_ranks - 1 - stage

    def cut(self, num_actions: int) -> "VShape":
        """Return the same with fewer micro-batches."""
        return replace(self, num_actions=num_actions)


@dataclass(frozen=True, slots=True)
class Found:
    """Orders of all ranks and what they come to."""

    rows: tuple[Row, ...]
    step_time_ns: int
    span_ns: int


def v_shape(name: str, request: Request, shares: float | None) -> VShape:
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
    return VShape(
        p,
        len(places[0].microbatches),
        {
            "F": tuple(_mean(cost.forward_ns) for cost in stages),
            "I": tuple(_mean(cost.backward_input_ns) + _mean(cost.recompute_ns) for cost in stages),
            "W": tuple(_mean(cost.backward_weight_ns) for cost in stages),
        },
        tuple(0 if stage == p - 1 or edge is None else edge.p2p_ns for stage, edge in enumerate(edges)),
        activation,
        tuple(largest(cost.weight_activation_bytes) for cost in stages),
        tuple(room),
    )


def as_orders(request: Request, rows: tuple[Row, ...]) -> Orders:
    """Return the actions that rows by place represent, on every replica."""
    orders = []
    for place in wave("a V-shaped schedule", request.graph, request.num_microbatches, 2):
        done: dict[tuple[str, int], int] = {}
        order = []
        for kind, stage in rows[place.position]:
            index = done[kind, stage] = done.get((kind, stage), -1) + 1
            if index < len(place.microbatches):
                order.append(Action(Kind(kind), stage, place.microbatches[index]))
        orders.append(tuple(order))
    return tuple(orders)


def _mean(amount: Amount) -> int:
    return amount if isinstance(amount, int) else sum(amount) // len(amount)
