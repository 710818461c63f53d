"""`dualpipe-v`: DualPipe on a wave: one copy of the parameters, two stages a rank."""

from fractions import Fraction

from simulator.schedules.dualpipe import check_enough, eight_steps, long_enough, overlapped
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind
from simulator.schedules.placement import wave


def orders(request: Request) -> Orders:
    """Return the order of each rank.

    Raises
    ------
    UsageError
        When there are fewer than 2 p micro-batches, or the stages are not placed in a wave of two.
    """
    ranks = wave("dualpipe-v", request.graph, request.num_microbatches, 2)
    for place in ranks:
        check_enough("dualpipe-v", place.num_positions, len(place.microbatches))
    return tuple(
        eight_steps(place.stages, (place.microbatches, place.microbatches), place.position, place.num_positions)
        for place in ranks
    )


KIND = ScheduleKind(
    name="dualpipe-v",
    placement="wave",
    split=True,
    description="DualPipe folded: the second pipeline is the way back of the first, with one copy of the parameters",
    source="Qi et al., Cut-in-half, 2025 (Sea AI Lab), and DeepSeek's DualPipe repository, 2025",
    orders=orders,
    bubble=ClosedForm(
        "(p - 1) (F + I - W) / 2",
        "a pair takes F + B, c = 0, m >= 2 p and W <= I <= F",
        lambda u, _: Fraction(u.ranks - 1, 2) * (u.forward + u.backward_input - u.backward_weight),
        long_enough,
    ),
    peak=ClosedForm(
        "p + 1 / 2", "m >= 2 p", lambda u, _: u.ranks + Fraction(1, 2), lambda u: u.microbatches >= 2 * u.ranks
    ),
    chunks=2,
    overlapped=overlapped,
)
