"""`eager-1f1b`: 1F1B with twice the warm-up, which hides the delay of the edges."""

from simulator.schedules.closed_forms import always, fill_and_drain
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind
from simulator.schedules.one_stage import one_forward_one_backward
from simulator.schedules.placement import line_orders


def orders(request: Request) -> Orders:
    """Return 1F1B with 2 (p - 1 - r) forwards before the first pair of forward and backward."""
    return line_orders(
        "eager-1f1b",
        request,
        lambda place: one_forward_one_backward(place.stage, place.microbatches, 2 * place.depth - 1),
    )


KIND = ScheduleKind(
    name="eager-1f1b",
    placement="line",
    split=False,
    description="1F1B with 2 (p - 1 - r) forwards first, so that a round trip over slow edges costs nothing",
    source="Zhuang et al., On optimizing the communication of model parallelism, MLSys 2023 (arXiv:2211.05322)",
    orders=orders,
    bubble=fill_and_drain("2 c <= T", lambda u: 2 * u.p2p <= u.work),
    peak=ClosedForm(
        "min(m, 2 (p - r) - 1)",
        "always",
        lambda u, rank: min(u.microbatches, 2 * (u.ranks - rank) - 1),
        always,
    ),
)
