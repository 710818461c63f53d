"""`zb-h2`: split backwards and twice the memory, the span free of bubbles at equal times."""

from simulator.schedules.closed_forms import weights_are_short
from simulator.schedules.handcrafted import handcrafted
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind
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
    description="2 (p - r) - 1 micro-batches in flight; at F = I = W no rank waits between its first and last action",
    source="Qi et al., Zero bubble pipeline parallelism, ICLR 2024 (arXiv:2401.10241), section 2",
    orders=orders,
    bubble=ClosedForm(
        "(p - 1) (F + I - 2 W) of the span",
        "c = 0, m >= 2 p and W <= min(F, I)",
        lambda u, _: (u.ranks - 1) * (u.forward + u.backward_input - 2 * u.backward_weight),
        lambda u: weights_are_short(u) and u.microbatches >= 2 * u.ranks,
    ),
    peak=ClosedForm(
        "2 p - 1 - 2 (1 - f) r",
        "m >= 2 p",
        lambda u, rank: 2 * u.ranks - 1 - 2 * (1 - u.w_memory_fraction) * rank,
        lambda u: u.microbatches >= 2 * u.ranks,
    ),
    bubble_of="span",
)
