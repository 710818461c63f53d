"""`graph-zb`: split backwards on any stage graph, several stages a rank or replicas too, within a memory limit.

Weight gradients fill the waits at joins and in the warm-up. Orders come from list simulations, from the schedules of
lines, loops and waves where stages stand so, and from a local search on the best of them; they minimise the step. What
the buffers of messages need is known when orders are timed, so a rank that is then over its limit gets less room.
Leaves out that R is moved ahead of the backward that needs it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from costmodel.errors import NoPlanFits, UsageError
from simulator.bounds import lower_bound_ns
from simulator.engine import Structure
from simulator.schedule import Schedule
from simulator.schedules import interleaved_zb, v_half, v_min, zb_auto, zb_v
from simulator.schedules.jobs import Jobs, Sequences, jobs_of
from simulator.schedules.jobs_best import best_orders
from simulator.schedules.kind import Orders, Request, ScheduleKind

OTHERS = (zb_auto, zb_v, v_half, v_min, interleaved_zb)
"""Schedules that are started from where they run."""
MOST_ROUNDS = 8
"""How often ranks get less room at most."""


def orders(request: Request) -> Orders:
    """Return the best orders that are found.

    Raises
    ------
    NoPlanFits
        When none are found within the memory limit.
    """
    jobs = jobs_of(request.costs, request.graph, request.num_microbatches, request.memory_limit_bytes, split=True)
    return within(request, jobs)


def within(request: Request, jobs: Jobs) -> Orders:
    """Return orders of jobs that keep the limit when they are timed, messages included."""
    over = 0
    for _ in range(MOST_ROUNDS):
        found = best_orders(jobs, _others(request, jobs), least_ns(request), request.seed)
        if found is None:
            break
        orders = jobs.orders(found[1])
        excess = excess_bytes(request, orders)
        over = max(excess)
        if not over:
            return orders
        jobs = replace(jobs, room=tuple(room - more for room, more in zip(jobs.room, excess, strict=True)))
    raise NoPlanFits(
        f"graph-zb found no order within the memory limit of {request.memory_limit_bytes} bytes a rank"
        + (f"; messages need {over} bytes more" if over else "")
        + "; raise --memory-limit"
    )


def excess_bytes(request: Request, orders: Orders) -> list[int]:
    """Return by how much each rank is over its limit."""
    if request.memory_limit_bytes is None:
        return [0]
    schedule = Schedule("graph-zb", request.graph, request.num_microbatches, orders)
    peaks = Structure(schedule).times(request.costs).peak_memory_bytes
    return [max(0, peak - request.memory_limit_bytes) for peak in peaks]


def least_ns(request: Request) -> int:
    """Return what no order can be below."""
    stages = request.costs.stages
    one_each = all(len(request.graph.stages_of(rank)) == 1 for rank in range(request.graph.num_ranks))
    return lower_bound_ns(
        request.costs,
        request.num_microbatches,
        "split" if one_each else "any",
        request.memory_limit_bytes,
        reduces=[stage.reduce_ns > 0 and stage.backward for stage in stages],
        updates=[stage.optimizer_ns > 0 for stage in stages],
    ).ns


def _others(request: Request, jobs: Jobs) -> Iterator[Callable[[], Sequences | None]]:
    """Yield what makes orders of other schedules; none where they do not run on these stages, or not in this memory."""

    def made(make: Callable[[Request], Orders]) -> Sequences | None:
        try:
            return jobs.sequences(make(replace(request, objective="step")))
        except (UsageError, NoPlanFits):
            return None

    for module in OTHERS:
        yield lambda make=module.KIND.orders: made(make)  # type: ignore[misc]


KIND = ScheduleKind(
    name="graph-zb",
    placement="graph",
    split=True,
    description="Split backwards on any stage graph, the order sought for the shortest step within a memory limit",
    source="this project; before it Qi et al., Zero bubble pipeline parallelism, ICLR 2024 (arXiv:2401.10241), and "
    "GraphPipe, ASPLOS 2025 (arXiv:2406.17145)",
    orders=orders,
    synthesis=True,
)
