"""`graph-auto`: 1F1B on a stage graph, then the orders themselves, sought for the shortest step.

The search begins with orders by a few rules for the micro-batches in flight of each stage
(`simulator.schedules.warmup`) and goes on as that of `graph-zb` does, with whole backwards; to change one stage's
number at a time first gains nothing beyond that. Orders by given numbers are left as they are.
"""

from dataclasses import replace
from functools import partial

from simulator.schedules.job_shop_orders import sought
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.list_simulation import Numbers, list_orders
from simulator.schedules.warmup import chain_in_flight, graph_in_flight, raised_in_flight

WORK = 2
"""Times as much work as split backwards get, whose other starts take their part, up to the usual one."""


def orders(request: Request) -> Orders:
    """Return orders by the numbers that are given, or the best that are found.

    Raises
    ------
    NoPlanFits
        When none are found within the memory limit.
    """
    if request.in_flight:
        return _by_numbers(raised_in_flight(request.graph, request.in_flight), request)
    asked = replace(request, effort=min(1.0, WORK * request.effort))
    return sought("graph-auto", asked, [partial(_by_numbers, numbers) for numbers in _starts(request)], split=False)


def _by_numbers(numbers: Numbers, request: Request) -> Orders:
    return list_orders(request.costs, request.graph, request.num_microbatches, numbers)


def _starts(request: Request) -> list[Numbers]:
    """Return numbers in flight by rules: as the graph, its messages or its stages in a line need, twice, and all."""
    costs, graph, count = request.costs, request.graph, request.num_microbatches
    batches = [multiple * len(ranks) for multiple, ranks in zip(graph.multiples, graph.ranks, strict=True)]
    line = chain_in_flight(graph)
    starts = (
        graph_in_flight(costs, graph, count, latency=False),
        graph_in_flight(costs, graph, count, latency=True),
        line,
        raised_in_flight(graph, [2 * number for number in line]),
        raised_in_flight(graph, [-(-count // batch) for batch in batches]),
    )
    return list(dict.fromkeys(starts))


KIND = ScheduleKind(
    name="graph-auto",
    placement="graph",
    split=False,
    description="1F1B on a stage graph, the micro-batches in flight of each stage, then the orders themselves, sought "
    "for the shortest step",
    source="this project; the numbers it starts from are those of graph-1f1b, with and without the time of messages",
    orders=orders,
    synthesis=True,
)
