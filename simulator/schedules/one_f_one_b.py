"""`1f1b`: p - r - 1 forwards on rank r, then forward and backward in turn."""

from fractions import Fraction

from simulator.schedules.closed_forms import always, rounds_are_whole
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind, Uniform
from simulator.schedules.one_stage import one_forward_one_backward
from simulator.schedules.placement import line_orders


def orders(request: Request) -> Orders:
    """Return 1F1B with as many micro-batches in flight as stages from here to the end (Megatron's warm-up)."""
    return line_orders(
        "1f1b", request, lambda place: one_forward_one_backward(place.stage, place.microbatches, place.depth)
    )


def _bubble(u: Uniform, _: int) -> Fraction:
    """Return the bubble; with slow edges a round trip is paid once for every p micro-batches."""
    round_trips = Fraction((u.ranks - 1) * u.microbatches, u.ranks) + u.ranks - 2
    return (u.ranks - 1) * u.work + (2 * u.p2p * round_trips if u.ranks > 1 else 0)


KIND = ScheduleKind(
    name="1f1b",
    placement="line",
    split=False,
    description="One forward, one backward in turn after the warm-up: at most p - r micro-batches in flight",
    source="Narayanan et al., Memory-efficient pipeline-parallel DNN training, ICML 2021 (arXiv:2006.09503)",
    orders=orders,
    bubble=ClosedForm(
        "(p - 1) T + 2 c ((p - 1) m / p + p - 2)",
        "c = 0, or p divides m",
        _bubble,
        lambda u: u.p2p == 0 or rounds_are_whole(u),
    ),
    peak=ClosedForm("min(m, p - r)", "always", lambda u, rank: min(u.microbatches, u.ranks - rank), always),
)
