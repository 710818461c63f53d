"""`chimera`: two 1F1B pipelines in opposite directions that fill each other's waits.

Every rank has a stage of both, so two copies of the parameters; micro-batches take the directions in turn, and a
stage keeps at most p / 2 of them in flight. The unit is p micro-batches. Leaves out forward doubling and backward
halving.
"""

from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.placement import two_way
from simulator.schedules.repeated_units import repeated_units


def orders(request: Request) -> Orders:
    """Return the orders of units laid one after the other.

    Raises
    ------
    UsageError
        When the stages are not placed both ways, or ranks or micro-batches are odd in number.
    """
    p = len(two_way("chimera", request.graph, request.num_microbatches))
    in_flight = tuple(min(p // 2, p - stage) for stage in range(p))
    return repeated_units(request.graph, request.num_microbatches, p, in_flight)


KIND = ScheduleKind(
    name="chimera",
    placement="two-way",
    split=False,
    description="Two opposite 1F1B pipelines, merged: half the bubble for two copies of the parameters",
    source="Li and Hoefler, Chimera, SC 2021 (arXiv:2107.06925)",
    orders=orders,
)
