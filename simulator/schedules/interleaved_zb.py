"""`interleaved-zb`: ZB-H1's idea over several chunks a rank: shorter warm-up, weight gradients put off.

Rank r runs p - 1 - r forwards and one round of every chunk but the last before its first input gradient, half
of what interleaved 1F1B runs for its own place, because an input gradient comes back sooner than a whole
backward. Rank r puts off r weight gradients, which fill its drain.
"""

from fractions import Fraction

from simulator.actions import Action, Kind
from simulator.schedules.closed_forms import rounds_are_whole, weights_are_short
from simulator.schedules.interleaved_1f1b import group_sizes, in_turn
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind, Uniform
from simulator.schedules.placement import ChunkRank, loop


def orders(request: Request) -> Orders:
    """Return the order of each rank: forward and input gradient in turn, weight gradients r behind."""
    return tuple(map(_order, loop("interleaved-zb", request.graph, request.num_microbatches)))


def _order(place: ChunkRank) -> tuple[Action, ...]:
    positions = place.num_positions
    return split_in_turn(place, group_sizes(len(place.microbatches), positions, positions), place.position)


def split_in_turn(place: ChunkRank, sizes: tuple[int, ...], late: int) -> tuple[Action, ...]:
    """Return forward and input gradient in turn behind a warm-up, with weight gradients `late` behind.

    Parameters
    ----------
    sizes : tuple of int
        Micro-batches of each group that goes through a chunk before the next chunk's turn.
    """
    ahead = in_turn(place.stages, place.microbatches, sizes, Kind.F)
    back = in_turn(place.stages[::-1], place.microbatches, sizes, Kind.I)
    warmup = min((len(place.stages) - 1) * sizes[0] + place.num_positions - 1 - place.position, len(ahead))
    order = ahead[:warmup]
    for done, action in enumerate(back):
        order += ahead[warmup + done : warmup + done + 1]
        order.append(action)
        if done >= late:
            order.append(weight_of(back[done - late]))
    return (*order, *map(weight_of, back[max(0, len(back) - late) :]))


def weight_of(action: Action) -> Action:
    """Return the weight gradient that follows an input gradient."""
    return Action(Kind.W, action.stage, action.microbatch)


def _peak(u: Uniform, rank: int) -> Fraction:
    late = min(rank, u.ranks)
    return u.ranks - Fraction(rank, u.chunks) + Fraction(late, u.chunks) * u.w_memory_fraction


KIND = ScheduleKind(
    name="interleaved-zb",
    placement="loop",
    split=True,
    description="v chunks a rank with split backwards: 1/v of ZB-H1's bubble at no more memory",
    source="Qi et al., Zero bubble pipeline parallelism, ICLR 2024 (arXiv:2401.10241), over the chunks of "
    "Narayanan et al., SC 2021 (arXiv:2104.04473)",
    orders=orders,
    bubble=ClosedForm(
        "(p - 1) (F + I - W) / v",
        "c = 0, p divides m and W <= min(F, I)",
        lambda u, _: Fraction(u.ranks - 1, u.chunks) * (u.forward + u.backward_input - u.backward_weight),
        lambda u: weights_are_short(u) and rounds_are_whole(u),
    ),
    peak=ClosedForm("p - (1 - f) r / v", "p divides m", _peak, rounds_are_whole),
)
