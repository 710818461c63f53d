"""`group-interleaved`: several chunks a rank, each input gradient sent before its weight gradient is worked out.

The forward of a group of micro-batches goes through a chunk before the next chunk's turn. Because the
gradient travels while the weight gradient is worked out, the warm-up is as short as that of
`interleaved-zb`; weight gradients are never put off, so nothing is held for them. Groups of p
micro-batches ("full") take the memory of 1F1B, groups of p / 2 ("half") (v + 1) / 2 v of it.
"""

from fractions import Fraction

from simulator.actions import Action
from simulator.schedules.closed_forms import rounds_are_whole
from simulator.schedules.interleaved_1f1b import group_sizes
from simulator.schedules.interleaved_zb import split_in_turn
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind
from simulator.schedules.placement import ChunkRank, loop


def orders(request: Request) -> Orders:
    """Return the order of each rank; `group_size` is p ("full") unless given, p / 2 is "half"."""
    ranks = loop("group-interleaved", request.graph, request.num_microbatches)
    return tuple(_order(place, request.group_size or place.num_positions) for place in ranks)


def _order(place: ChunkRank, group_size: int) -> tuple[Action, ...]:
    return split_in_turn(place, group_sizes(len(place.microbatches), group_size, group_size), 0)


KIND = ScheduleKind(
    name="group-interleaved",
    placement="loop",
    split=True,
    description="v chunks a rank, input gradients sent early; groups of p / 2 hold little more than half of 1F1B",
    source="Qi et al., Pipeline parallelism with controllable memory, NeurIPS 2024 (arXiv:2405.15362), section 5",
    orders=orders,
    bubble=ClosedForm(
        "(p - 1) (F + I) / v",
        "c = 0, groups of p and p divides m",
        lambda u, _: Fraction(u.ranks - 1, u.chunks) * (u.forward + u.backward_input),
        lambda u: u.p2p == 0 and rounds_are_whole(u),
    ),
    peak=ClosedForm(
        "p - r / v", "groups of p and p divides m", lambda u, r: u.ranks - Fraction(r, u.chunks), rounds_are_whole
    ),
)
