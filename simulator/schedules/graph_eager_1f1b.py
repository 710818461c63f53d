"""`graph-eager-1f1b`: 1F1B on a stage graph with a deeper warm-up where edges are slow."""

from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.list_simulation import list_orders
from simulator.schedules.warmup import graph_in_flight


def orders(request: Request) -> Orders:
    """Return 1F1B orders with the warm-up of `simulator.schedules.warmup`, its latency term included."""
    numbers = graph_in_flight(request.costs, request.graph, request.num_microbatches, latency=True)
    return list_orders(request.costs, request.graph, request.num_microbatches, numbers)


KIND = ScheduleKind(
    name="graph-eager-1f1b",
    placement="graph",
    split=False,
    description="graph-1f1b with ceil(2 c / period) more micro-batches in flight for each slow edge towards a sink",
    source="The warm-up of Zhuang et al., MLSys 2023 (arXiv:2211.05322), on a stage graph",
    orders=orders,
)
