"""`graph-kfkb`: stages of a graph that take different numbers of micro-batches in one action."""

from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.list_simulation import list_orders
from simulator.schedules.warmup import graph_in_flight


def orders(request: Request) -> Orders:
    """Return 1F1B orders with the warm-up of `simulator.schedules.warmup`, latency left out."""
    numbers = graph_in_flight(request.costs, request.graph, request.num_microbatches, latency=False)
    return list_orders(request.costs, request.graph, request.num_microbatches, numbers)


KIND = ScheduleKind(
    name="graph-kfkb",
    placement="graph",
    split=False,
    description="graph-1f1b whose stages take k micro-batches in one action, each stage its own k",
    source="Jeon et al., GraphPipe, ASPLOS 2025 (arXiv:2406.17145), section 6",
    orders=orders,
)
