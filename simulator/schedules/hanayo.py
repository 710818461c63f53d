"""`hanayo`: stages go to and fro over the ranks, as often as there are waves, and backwards come back the same way.

A rank has two stages a wave; no parameters are copied. The unit is p micro-batches, and a stage keeps at most p of
them in flight, so no rank holds more than 1F1B's first one.
"""

from costmodel.errors import UsageError
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.placement import wave
from simulator.schedules.repeated_units import repeated_units


def orders(request: Request) -> Orders:
    """Return the orders of units for any number of waves: half the stages of a rank.

    Raises
    ------
    UsageError
        When the stages are not placed in a wave, have replicas or take several micro-batches in one action.
    """
    graph = request.graph
    p = wave("hanayo", graph, request.num_microbatches)[0].num_positions
    if p < graph.num_ranks or max(graph.multiples) > 1:
        raise UsageError("hanayo runs each stage on one rank, one micro-batch in one action; take interleaved-1f1b")
    return repeated_units(graph, request.num_microbatches, p, (p,) * graph.num_stages)


KIND = ScheduleKind(
    name="hanayo",
    placement="wave",
    split=False,
    description="1F1B over stages that go to and fro: w waves are 2 w stages a rank, with one copy of the parameters",
    source="Liu et al., Hanayo, SC 2023 (doi:10.1145/3581784.3607073)",
    orders=orders,
    chunks=2,
)
