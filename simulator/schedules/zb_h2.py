"""`zb-h2`: split backwards and twice the memory, the span free of bubbles."""

from simulator.schedules.handcrafted import handcrafted
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.placement import line_orders


def orders(request: Request) -> Orders:
    """Return 2 (p - r) - 1 micro-batches in flight on rank r; at most 2 p - 1 wait for their weight gradient."""
    return line_orders(
        "zb-h2",
        request,
        lambda place: handcrafted(place.stage, place.microbatches, 2 * place.depth - 1, 2 * place.longest - 1),
    )


KIND = ScheduleKind(
    name="zb-h2",
    placement="line",
    split=True,
    description="2 (p - r) - 1 micro-batches in flight, so that no rank waits between its first and last action",
    source="Qi et al., Zero bubble pipeline parallelism, ICLR 2024 (arXiv:2401.10241), section 2",
    orders=orders,
)
