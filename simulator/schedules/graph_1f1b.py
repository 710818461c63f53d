"""`graph-1f1b`: 1F1B on a stage graph, each stage with as many micro-batches in flight as its depth needs."""

from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.list_simulation import list_orders
from simulator.schedules.warmup import graph_in_flight


def orders(request: Request) -> Orders:
    """Return 1F1B orders with the warm-up of `simulator.schedules.warmup`, latency left out."""
    numbers = graph_in_flight(request.costs, request.graph, request.num_microbatches, latency=False)
    return list_orders(request.costs, request.graph, request.num_microbatches, numbers)


KIND = ScheduleKind(
    name="graph-1f1b",
    placement="graph",
    split=False,
    description="1F1B on a stage graph: branches run at once, the warm-up of a stage is its longest path to a sink",
    source="Jeon et al., GraphPipe, ASPLOS 2025 (arXiv:2406.17145), section 6",
    orders=orders,
)
