"""`zb-h1`: 1F1B with split backwards and no more memory, weight gradients of late ranks put off."""

from simulator.schedules.closed_forms import weights_are_short
from simulator.schedules.handcrafted import handcrafted
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind
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
    description="1F1B's warm-up and memory; weight gradients that late ranks put off fill part of the drain",
    source="Qi et al., Zero bubble pipeline parallelism, ICLR 2024 (arXiv:2401.10241), section 2",
    orders=orders,
    bubble=ClosedForm(
        "(p - 1) (F + I - W)",
        "c = 0, m >= p and W <= min(F, I)",
        lambda u, _: (u.ranks - 1) * (u.forward + u.backward_input - u.backward_weight),
        lambda u: weights_are_short(u) and u.microbatches >= u.ranks,
    ),
    peak=ClosedForm(
        "p - (1 - f) r",
        "m >= p",
        lambda u, rank: u.ranks - (1 - u.w_memory_fraction) * rank,
        lambda u: u.microbatches >= u.ranks,
    ),
)
