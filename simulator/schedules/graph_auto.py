"""`graph-auto`: 1F1B on a stage graph, each stage with as many micro-batches in flight as makes the step shortest.

Numbers are changed one at a time, as long as the simulated step gets shorter and no rank is over the memory limit; one
that would keep stages waiting for each other is raised (`simulator.schedules.warmup`). Then the orders themselves are
sought, as `graph-zb` does with whole backwards: where stages share a rank, numbers alone say too little. Orders by
given numbers are left as they are.
"""

from collections.abc import Iterator
from operator import itemgetter

from simulator.engine import Structure
from simulator.schedule import Schedule
from simulator.schedules.job_shop_orders import least_ns, sought
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.list_simulation import Numbers, has_one_stage_a_rank, list_orders, lister
from simulator.schedules.warmup import chain_in_flight, graph_in_flight, raised_in_flight

CHANGES = (1, -1, 2, -2)
"""What is tried of the number of a stage."""
MOST_ROUNDS = 8
"""How often the numbers of all stages are gone through at most."""
MOST_FIXED, MOST_LISTED = 1_500_000, 100_000
"""Actions that are ordered and timed at most, where each rank has one stage, and where lists are simulated."""


def orders(request: Request) -> Orders:
    """Return orders by the numbers that are given, or the best that are found.

    Raises
    ------
    NoPlanFits
        When none are found within the memory limit.
    """
    if request.in_flight:
        return _by_numbers(request, raised_in_flight(request.graph, request.in_flight))
    return sought("graph-auto", request, (lambda request: _by_numbers(request, _best(request)),), split=False)


def _by_numbers(request: Request, numbers: Numbers) -> Orders:
    return list_orders(request.costs, request.graph, request.num_microbatches, numbers)


def _best(request: Request) -> Numbers:
    """Return numbers that no change of one stage betters, as far as there is work left for trying."""
    graph, made = request.graph, lister(request.costs, request.graph, request.num_microbatches)
    most = MOST_FIXED if has_one_stage_a_rank(graph) else MOST_LISTED
    left = most // (2 * graph.num_stages * request.num_microbatches)
    starts = (
        graph_in_flight(request.costs, graph, request.num_microbatches, latency=False),
        graph_in_flight(request.costs, graph, request.num_microbatches, latency=True),
        chain_in_flight(graph),
        raised_in_flight(graph, [2 * number for number in chain_in_flight(graph)]),
        raised_in_flight(graph, _all_forwards(request)),
    )
    some = list(dict.fromkeys(starts))[: max(1, left)]
    value, best = min(((_value(request, made(numbers)), numbers) for numbers in some), key=itemgetter(0))
    rounds, left = 0, left - len(some)
    found = value > (0, least_ns(request, split=False))
    while found and rounds < MOST_ROUNDS:
        rounds, found = rounds + 1, False
        for numbers in neighbours(best):
            if left <= 0:
                break
            left -= 1
            other = raised_in_flight(graph, numbers)
            if other != best and (tried := _value(request, made(other))) < value:
                best, value, found = other, tried, True
                break
    return best


def _all_forwards(request: Request) -> Numbers:
    """Return the numbers of stages that do all forwards first."""
    graph = request.graph
    batches = [multiple * len(ranks) for multiple, ranks in zip(graph.multiples, graph.ranks, strict=True)]
    return tuple(-(-request.num_microbatches // batch) for batch in batches)


def neighbours(numbers: Numbers) -> Iterator[Numbers]:
    """Yield the numbers with that of one stage changed."""
    for change in CHANGES:
        for stage, number in enumerate(numbers):
            if number + change > 0:
                yield (*numbers[:stage], number + change, *numbers[stage + 1 :])


def _value(request: Request, orders: Orders) -> tuple[int, int]:
    """Return by how many bytes the worst rank is over its limit, and the step."""
    schedule = Schedule("graph-auto", request.graph, request.num_microbatches, orders)
    times = Structure(schedule).times(request.costs)
    limit = request.memory_limit_bytes
    over = max(0, max(times.peak_memory_bytes) - limit) if limit is not None else 0
    return over, times.step_time_ns


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
