"""`zb-v`: a fold whose ranks wait for nothing in the steady state, at the memory of 1F1B."""

from simulator.schedules.fold import as_orders, fold
from simulator.schedules.fold_search import best_fold
from simulator.schedules.kind import Orders, Request, ScheduleKind


def orders(request: Request) -> Orders:
    """Return the best orders found within the memory limit, p activation shares by default."""
    laid = fold("zb-v", request, None)
    return as_orders(request, best_fold("zb-v", laid, request.objective).rows)


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
