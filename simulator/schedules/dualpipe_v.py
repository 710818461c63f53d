"""`dualpipe-v`: DualPipe on a wave: one copy of the parameters, two stages a rank."""

from simulator.schedules.dualpipe import check_enough, eight_steps
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind, Uniform
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
    chunks=2,
)
