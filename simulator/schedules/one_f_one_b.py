"""`1f1b`: p - r - 1 forwards on rank r, then forward and backward in turn."""

from fractions import Fraction

from simulator.schedules.closed_forms import ALWAYS, fill_and_drain
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind
from simulator.schedules.one_stage import one_forward_one_backward
from simulator.schedules.placement import line_orders


def orders(request: Request) -> Orders:
    """Return 1F1B with as many micro-batches in flight as stages from here to the end (Megatron's warm-up)."""
    return line_orders(
        "1f1b", request, lambda place: one_forward_one_backward(place.stage, place.microbatches, place.depth)
    )


KIND = ScheduleKind(
    name="1f1b",
    placement="line",
    split=False,
    description="One forward, one backward in turn after the warm-up: at most p - r micro-batches in flight",
    source="Narayanan et al., Memory-efficient pipeline-parallel DNN training, ICML 2021 (arXiv:2006.09503)",
    orders=orders,
    bubble=fill_and_drain(ALWAYS),
    peak=ClosedForm(
        "min(m, p - r)",
        "always",
        lambda u, rank: Fraction(min(u.microbatches, u.ranks - rank)),
        ALWAYS.holds,
    ),
)
