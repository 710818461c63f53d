"""`zb-auto`: split backwards ordered by a heuristic within a memory limit."""

from costmodel.errors import UsageError
from costmodel.stages.costs import largest
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.list_simulation import paced
from simulator.schedules.split_progress import Found
from simulator.schedules.split_stages import SplitStages
from simulator.schedules.sweep_pipeline import pipeline
from simulator.schedules.sweep_search import MOST_SWEEPS, best_sweep
from simulator.schedules.warmup import graph_in_flight

OBJECTIVES = ("span", "step")


def orders(request: Request) -> Orders:
    """Return the best orders that sweeps of many choices, and lists where memory is short, find (`swept`)."""
    return swept(request)


def swept(request: Request, most_sweeps: int = MOST_SWEEPS) -> Orders:
    """Return the best orders that a number of sweeps find.

    Raises
    ------
    UsageError
        For an unknown objective, several stages on a rank, or replicas.
    NoPlanFits
        When a rank cannot hold one activation.
    """
    if request.objective not in OBJECTIVES:
        raise UsageError(f"objective {request.objective!r} is not known; zb-auto minimises {' or '.join(OBJECTIVES)}")
    graph = request.graph
    line = pipeline("zb-auto", request.costs, graph, request.num_microbatches, request.memory_limit_bytes)
    found = best_sweep(line, request.objective, most_sweeps)
    depth = graph_in_flight(request.costs, graph, request.num_microbatches, latency=False)
    room = dict(zip(line.stages, line.room, strict=True))
    needed = (number * largest(cost.activation_bytes) for number, cost in zip(depth, request.costs.stages, strict=True))
    if any(room[stage] < size for stage, size in enumerate(needed)):  # less than 1F1B holds
        by_rank = [room[graph.stages_of(rank)[0]] for rank in range(graph.num_ranks)]
        other = paced(request, depth, by_rank)
        if other and other[0] < found.key(request.objective):
            return other[1]
    return as_orders(request, found, line)


def as_orders(request: Request, found: Found, line: SplitStages) -> Orders:
    """Return the actions that orders by position represent."""
    graph = request.graph
    places = [line.stages.index(graph.stages_of(rank)[0]) for rank in range(graph.num_ranks)]
    microbatches = range(0, request.num_microbatches, graph.multiples[0])
    return tuple(line.actions(found.rows[place], microbatches) for place in places)


KIND = ScheduleKind(
    name="zb-auto",
    placement="line",
    split=True,
    description="Split backwards ordered by a heuristic search within a memory limit (1 p and 2 p are ZB-1p and ZB-2p)",
    source="Qi et al., Zero bubble pipeline parallelism, ICLR 2024 (arXiv:2401.10241), section 3",
    orders=orders,
    synthesis=True,
)
