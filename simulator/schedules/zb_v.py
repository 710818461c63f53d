"""`zb-v`: a V-shaped schedule whose ranks wait for nothing in the steady state, at the memory of 1F1B."""

from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.v_shape import as_orders, v_shape
from simulator.schedules.v_shape_search import best_v_shape


def orders(request: Request) -> Orders:
    """Return the best orders found within the memory limit, p activation shares by default."""
    laid = v_shape("zb-v", request, None)
    return as_orders(request, laid, best_v_shape("zb-v", laid, request.objective).rows)


KIND = ScheduleKind(
    name="zb-v",
    placement="wave",
    split=True,
    description="Stages folded onto the ranks, which evens memory out; searched within a limit, 1F1B's by default",
    source="Qi et al., Pipeline parallelism with controllable memory, NeurIPS 2024 (arXiv:2405.15362), and "
    "Zero bubble pipeline parallelism, ICLR 2024 (arXiv:2401.10241), section 6",
    orders=orders,
    synthesis=True,
    chunks=2,
)
