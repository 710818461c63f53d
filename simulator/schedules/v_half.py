"""`v-half`: a V-shaped schedule at about half the memory of 1F1B."""

from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.v_shape import as_orders, v_shape
from simulator.schedules.v_shape_search import best_v_shape


def orders(request: Request) -> Orders:
    """Return the best orders found within floor((p + 2) / 2) activation shares."""
    laid = v_shape("v-half", request, shares(request.graph.num_stages // 2))
    return as_orders(request, laid, best_v_shape("v-half", laid, request.objective).rows)


def shares(p: int) -> float:
    """Return the activation shares that a rank may hold."""
    return (p + 2) // 2


KIND = ScheduleKind(
    name="v-half",
    placement="wave",
    split=True,
    description="Stages folded onto the ranks and searched at about half the memory of 1F1B",
    source="Qi et al., Pipeline parallelism with controllable memory, NeurIPS 2024 (arXiv:2405.15362), section 4",
    orders=orders,
    synthesis=True,
    chunks=2,
)
