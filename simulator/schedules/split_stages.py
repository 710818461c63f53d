"""Stages with split backwards that all take equally many micro-batches in one action, as plain tables of integers.

Stages are renumbered by their position in the topological (index) order, so that whoever goes from the last to the
first meets every successor before its predecessors, and ranks so that they have consecutive numbers. Actions are
counted, not micro-batches. Sweeps (`zb-auto`) and V-shaped schedules order them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.stages.costs import StageCost, at
from simulator.actions import Action, Kind

Links = tuple[tuple[int, int], ...]
"""Positions at the other ends of edges, each with its delay in ns."""
Table = tuple[tuple[int, ...], ...]
"""One amount by position and action."""
Row = list[tuple[str, int]]
"""The order of one rank: kind and position of each action; the n-th F of a position is that of its n-th action."""


@dataclass(frozen=True, slots=True)
class SplitStages:
    """Costs by position and action.

    Attributes
    ----------
    stages : tuple of int
        The stage at each position.
    rank : tuple of int
        Where each position runs.
    num_actions : int
        Forwards of each stage.
    time : dict of str to Table
        ns of "F", "I" and "W"; recompute counts to I.
    activation, kept : Table
        Bytes that F takes, and the part of them that stays from I until W.
    room : tuple of int
        Bytes for activations on each rank; what messages take is set aside.
    sources, targets, gradient_targets : tuple of Links
        Edges in, edges out, and those of them over which a gradient comes back.
    backward : tuple of bool
        Whether the stage has a backward.
    level : tuple of int
        Edges on the longest path from a source.
    forward_ends : Table
        When every forward would end if each position had nothing else to do.
    """

    stages: tuple[int, ...]
    rank: tuple[int, ...]
    num_actions: int
    time: dict[str, Table]
    activation: Table
    kept: Table
    room: tuple[int, ...]
    sources: tuple[Links, ...]
    targets: tuple[Links, ...]
    gradient_targets: tuple[Links, ...]
    backward: tuple[bool, ...]
    level: tuple[int, ...]
    forward_ends: Table

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self.stages)

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.room)

    def work_ns(self, position: int) -> int:
        """Compute of one stage."""
        kinds = "FIW" if self.backward[position] else "F"
        return sum(sum(self.time[kind][position]) for kind in kinds)

    def cut(self, num_actions: int) -> "SplitStages":
        """Return the same with its first `num_actions` actions alone."""
        names = ("activation", "kept", "forward_ends")
        short = {name: tuple(row[:num_actions] for row in getattr(self, name)) for name in names}
        time = {kind: tuple(row[:num_actions] for row in table) for kind, table in self.time.items()}
        return replace(self, num_actions=num_actions, time=time, **short)

    def actions(self, row: Row, microbatches: Sequence[int]) -> tuple[Action, ...]:
        """Return the actions of an order on a rank that takes some micro-batches, one in each action."""
        done: dict[tuple[str, int], int] = {}
        order = []
        for kind, position in row:
            index = done[kind, position] = done.get((kind, position), -1) + 1
            if index < len(microbatches):
                order.append(Action(Kind(kind), self.stages[position], microbatches[index]))
        return tuple(order)


def split_stages(
    stages: Sequence[int],
    rank: Sequence[int],
    num_actions: int,
    costs: Sequence[StageCost],
    room: Sequence[int],
    edges: Sequence[tuple[int, int, int, bool]],
) -> SplitStages:
    """Lay stages out.

    Parameters
    ----------
    stages, rank : sequence of int
        By position.
    num_actions : int
    costs : sequence of StageCost
        By position.
    room : sequence of int
        By rank.
    edges : sequence of tuple
        Source and target (positions), delay in ns, and whether a gradient comes back.
    """
    links: list[list[list[tuple[int, int]]]] = [[[] for _ in stages] for _ in range(3)]
    for source, target, delay, has_gradient in sorted(edges):
        links[0][target].append((source, delay))
        links[1][source].append((target, delay))
        if has_gradient:
            links[2][source].append((target, delay))
    sources, targets, gradients = (tuple(map(tuple, row)) for row in links)
    forward, back, again, weight, activation, kept = (
        tuple(tuple(at(getattr(cost, name), index) for index in range(num_actions)) for cost in costs)
        for name in ("forward_ns", "backward_input_ns", "recompute_ns", "backward_weight_ns", "activation_bytes",
                     "weight_activation_bytes")
    )  # fmt: skip
    inputs = tuple(tuple(map(sum, zip(*pair, strict=True))) for pair in zip(back, again, strict=True))
    level: list[int] = []
    for incoming in sources:
        level.append(max((level[source] + 1 for source, _ in incoming), default=0))
    return SplitStages(
        tuple(stages),
        tuple(rank),
        num_actions,
        {"F": forward, "I": inputs, "W": weight},
        activation,
        kept,
        tuple(room),
        sources,
        targets,
        gradients,
        tuple(cost.backward for cost in costs),
        tuple(level),
        _back_to_back(forward, sources),
    )


def _back_to_back(forward: Table, sources: Sequence[Links]) -> Table:
    ends: list[tuple[int, ...]] = []
    for times, incoming in zip(forward, sources, strict=True):
        now, row = 0, []
        for index, time_ns in enumerate(times):
            arrival = max((ends[source][index] + delay for source, delay in incoming), default=0)
            now = max(now, arrival) + time_ns
            row.append(now)
        ends.append(tuple(row))
    return tuple(ends)
