"""From a request to orders: jobs, their search, and the limit held once messages count.

What the buffers of messages need is known when orders are timed, so a rank that is then over its limit gets less room.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from costmodel.errors import NoPlanFits, UsageError
from simulator.bounds import lower_bound_ns
from simulator.engine import Structure
from simulator.schedule import Schedule
from simulator.schedules.job_shop import JobShop, Sequences, job_shop_of
from simulator.schedules.job_shop_best import best_orders
from simulator.schedules.kind import Orders, Request

LEAST_ROUNDS, MOST_ROUNDS, ROUNDED = 2, 8, 120_000
"""How often orders are sought, ranks getting less room each time, and of how many jobs in all with the usual effort."""
Maker = Callable[[Request], Orders]
"""Makes orders to start from; refuses stages on which it does not run, or too little memory."""


def sought(name: str, request: Request, makers: Sequence[Maker], *, split: bool) -> Orders:
    """Return the orders with the shortest step that are found.

    Parameters
    ----------
    name : str
        Of the schedule, for people.
    makers : sequence of Maker
    split : bool
        Whether backwards are I and W, or B.

    Raises
    ------
    NoPlanFits
        When none are found within the memory limit.
    """
    jobs = job_shop_of(request.costs, request.graph, request.num_microbatches, request.memory_limit_bytes, split=split)
    enough_ns = least_ns(request, split=split)
    over = 0
    for number in range(max(LEAST_ROUNDS, min(MOST_ROUNDS, int(ROUNDED * request.effort) // len(jobs.actions)))):
        others = [partial(_made, make, request, jobs) for make in makers]
        excess: list[int] = []
        for _, sequences in best_orders(jobs, others, enough_ns, request.seed, request.effort):
            orders = jobs.orders(sequences)
            excess = excess_bytes(request, orders)
            over = max(excess)
            if not over:
                return orders
        if not excess:
            break
        times = 2 ** max(0, number - 1)  # other orders have other messages: to close in on the limit takes long
        jobs = replace(jobs, room=tuple(room - times * more for room, more in zip(jobs.room, excess, strict=True)))
    messages = f"; messages take {over} bytes more than it" if over else ""
    raise NoPlanFits(
        f"{name} found no order within the memory limit of {request.memory_limit_bytes} bytes a rank{messages}; "
        "raise --memory-limit"
    )


def _made(make: Maker, request: Request, jobs: JobShop) -> Sequences | None:
    try:
        return jobs.sequences(make(replace(request, objective="step")))
    except (UsageError, NoPlanFits):
        return None


def excess_bytes(request: Request, orders: Orders) -> list[int]:
    """Return by how much each rank is over its limit."""
    if request.memory_limit_bytes is None:
        return [0]
    schedule = Schedule("sought", request.graph, request.num_microbatches, orders)
    peaks = Structure(schedule).times(request.costs).peak_memory_bytes
    return [max(0, peak - request.memory_limit_bytes) for peak in peaks]


def least_ns(request: Request, *, split: bool) -> int:
    """Return what no order can be below."""
    stages, graph = request.costs.stages, request.graph
    one_each = all(len(graph.stages_of(rank)) == 1 for rank in range(graph.num_ranks))
    family = ("split" if split else "fused") if one_each else "any"
    return lower_bound_ns(
        request.costs,
        request.num_microbatches,
        family,
        request.memory_limit_bytes,
        reduces=[stage.reduce_ns > 0 and stage.backward for stage in stages],
        updates=[stage.optimizer_ns > 0 for stage in stages],
    ).ns
