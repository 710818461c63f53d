"""`zb-h1`: 1F1B with split backwards and no more memory, weight gradients of late ranks put off."""

from simulator.schedules.handcrafted import handcrafted
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.placement import line_orders


def orders(request: Request) -> Orders:
    """Return 1F1B's forwards and input gradients; at most p micro-batches wait for their weight gradient."""
    return line_orders(
        "zb-h1",
        request,
        lambda place: handcrafted(place.stage, place.microbatches, place.depth, place.longest),
    )


KIND = ScheduleKind(
    name="zb-h1",
    placement="line",
    split=True,
    description="1F1B's warm-up and memory; weight gradients that late ranks put off fill a third of the drain",
    source="Qi et al., Zero bubble pipeline parallelism, ICLR 2024 (arXiv:2401.10241), section 2",
    orders=orders,
)
