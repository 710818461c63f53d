"""`interleaved-1f1b`: 1F1B over several chunks a rank, micro-batches taken in groups.

A rank runs a group of micro-batches through its first chunk, then through its second, and so on, then
turns to the next group; backwards go the same way with the chunks reversed. What the group size leaves
over is a last group of its own if it has p micro-batches (fewer would make the ranks wait for each other
in a circle), else it is spread over the groups.
"""

from fractions import Fraction

from costmodel.errors import UsageError
from simulator.actions import Action, Kind, numbered
from simulator.schedules.closed_forms import looped, rounds_are_whole
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind, Uniform
from simulator.schedules.one_stage import in_pairs
from simulator.schedules.placement import ChunkRank, loop
from simulator.uniform import split_evenly


def orders(request: Request) -> Orders:
    """Return Megatron's interleaved order; `group_size` is p unless given.

    Raises
    ------
    UsageError
        When the stages are not placed in a loop, or the group is smaller than the number of ranks.
    """
    ranks = loop("interleaved-1f1b", request.graph, request.num_microbatches)
    num_positions = ranks[0].num_positions
    group_size = request.group_size or num_positions
    if group_size < num_positions:
        raise UsageError(
            f"groups of {group_size} micro-batches on {num_positions} ranks: a rank would wait for itself; "
            f"take groups of {num_positions} or more"
        )
    return tuple(_order(place, group_size) for place in ranks)


def _order(place: ChunkRank, group_size: int) -> tuple[Action, ...]:
    sizes = group_sizes(len(place.microbatches), group_size, place.num_positions)
    ahead = in_turn(place.stages, place.microbatches, sizes, Kind.F)
    back = in_turn(place.stages[::-1], place.microbatches, sizes, Kind.B)
    warmup = 2 * (place.num_positions - 1 - place.position) + (len(place.stages) - 1) * sizes[0]
    if len(place.stages) == 1:
        warmup = place.num_positions - 1 - place.position
    warmup = min(warmup, len(ahead))
    return tuple(in_pairs(ahead, back, warmup))


def group_sizes(num_actions: int, group_size: int, least: int) -> tuple[int, ...]:
    """Return the sizes of the groups: none below `least` unless there are fewer actions than that."""
    num_groups, left = divmod(num_actions, group_size)
    if num_groups and left < least:
        return split_evenly(num_actions, num_groups)
    return (group_size,) * num_groups + (left,)


def in_turn(stages: tuple[int, ...], microbatches: tuple[int, ...], sizes: tuple[int, ...], kind: Kind) -> list[Action]:
    """Return the actions of one kind: group by group, and within a group stage by stage."""
    order: list[Action] = []
    rows = [numbered(kind, stage, microbatches) for stage in stages]
    first = 0
    for size in sizes:
        for row in rows:
            order += row[first : first + size]
        first += size
    return order


def _peak(u: Uniform, rank: int) -> Fraction:
    return min(Fraction(u.microbatches), u.ranks + Fraction(u.ranks - 1 - 2 * rank, u.chunks))


KIND = ScheduleKind(
    name="interleaved-1f1b",
    placement="loop",
    split=False,
    description="1F1B over v chunks a rank, groups of micro-batches in turn: 1/v of the bubble, more transfers",
    source="Narayanan et al., Efficient large-scale language model training, SC 2021 (arXiv:2104.04473)",
    orders=orders,
    bubble=looped("c = 0 and p divides m", lambda u: u.p2p == 0 and rounds_are_whole(u)),
    peak=ClosedForm(
        "min(m, p + (p - 1 - 2 r) / v)",
        "v > 1 and p divides m",
        _peak,
        lambda u: u.chunks > 1 and rounds_are_whole(u),
    ),
)
