"""`interleaved-1f1b`: 1F1B over several chunks a rank, micro-batches taken in groups.

A rank runs a group of micro-batches through its first chunk, then through its second, and so on, then
turns to the next group; backwards go the same way with the chunks reversed. The last group holds what is
left when the group size does not divide the number of micro-batches.
"""

from simulator.actions import Action, Kind
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.placement import LoopRank, loop


def orders(request: Request) -> Orders:
    """Return Megatron's interleaved order; `group_size` is p unless given.

    Raises
    ------
    UsageError
        When the stages are not placed in a loop, or the group is smaller than the number of ranks.
    """
    ranks = loop("interleaved-1f1b", request.graph, request.num_microbatches)
    return tuple(_order(place, request.group_size or place.num_positions) for place in ranks)


def _order(place: LoopRank, group_size: int) -> tuple[Action, ...]:
    ahead = in_turn(place.stages, place.microbatches, group_size, Kind.F)
    back = in_turn(place.stages[::-1], place.microbatches, group_size, Kind.B)
    warmup = 2 * (place.num_positions - 1 - place.position) + (len(place.stages) - 1) * group_size
    if len(place.stages) == 1:
        warmup = place.num_positions - 1 - place.position
    warmup = min(warmup, len(ahead))
    steady = [action for pair in zip(ahead[warmup:], back, strict=False) for action in pair]
    return (*ahead[:warmup], *steady, *back[len(ahead) - warmup :])


def in_turn(stages: tuple[int, ...], microbatches: tuple[int, ...], group_size: int, kind: Kind) -> list[Action]:
    """Return the actions of one kind: group by group, and within a group stage by stage."""
    return [
        Action(kind, stage, microbatch)
        for first in range(0, len(microbatches), group_size)
        for stage in stages
        for microbatch in microbatches[first : first + group_size]
    ]


KIND = ScheduleKind(
    name="interleaved-1f1b",
    placement="loop",
    split=False,
    description="1F1B over v chunks a rank, groups of micro-batches in turn: 1/v of the bubble, more transfers",
    source="Narayanan et al., Efficient large-scale language model training, SC 2021 (arXiv:2104.04473)",
    orders=orders,
)
