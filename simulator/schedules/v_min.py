"""`v-min`: a V-shaped schedule at about a third of the memory of 1F1B."""

from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.v_shape import as_orders, v_shape
from simulator.schedules.v_shape_search import best_v_shape


def orders(request: Request) -> Orders:
    """Return the best orders found within floor((p + 4) / 3) activation shares, 3 / 2 on two ranks."""
    laid = v_shape("v-min", request, shares(request.graph.num_stages // 2))
    return as_orders(request, laid, best_v_shape("v-min", laid, request.objective).rows)


def shares(p: int) -> float:
    """Return the activation shares that a rank may hold."""
    return (p + 4) // 3 if p > 2 else 1.5 if p == 2 else 1


KIND = ScheduleKind(
    name="v-min",
    placement="wave",
    split=True,
    description="Stages folded onto the ranks and searched at about a third of the memory of 1F1B",
    source="Qi et al., Pipeline parallelism with controllable memory, NeurIPS 2024 (arXiv:2405.15362), section 4",
    orders=orders,
    synthesis=True,
    chunks=2,
)
