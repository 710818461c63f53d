"""`zb-auto`: split backwards ordered by a heuristic within a memory limit."""

from costmodel.errors import UsageError
from simulator.actions import Action, Kind
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.sweep_pipeline import pipeline
from simulator.schedules.sweep_search import MOST_SWEEPS, best_sweep

OBJECTIVES = ("span", "step")


def orders(request: Request) -> Orders:
    """Return the best orders that sweeps of many choices find (`swept`)."""
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
    rows: list[tuple[Action, ...]] = [()] * graph.num_ranks
    for stage, order in zip(line.stages, found.orders, strict=True):
        size = graph.multiples[stage]
        rows[graph.ranks[stage][0]] = tuple(Action(Kind(kind), stage, index * size) for kind, index in order)
    return tuple(rows)


KIND = ScheduleKind(
    name="zb-auto",
    placement="line",
    split=True,
    description="Split backwards ordered by a heuristic search within a memory limit (1 p and 2 p are ZB-1p and ZB-2p)",
    source="Qi et al., Zero bubble pipeline parallelism, ICLR 2024 (arXiv:2401.10241), section 3",
    orders=orders,
    synthesis=True,
)
