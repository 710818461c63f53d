"""`graph-zb`: split backwards on any stage graph, several stages a rank or replicas too, within a memory limit.

Weight gradients fill the waits at joins and in the warm-up. Orders come from list simulations, from the schedules of
lines, loops and waves where stages are placed so, and from a local search on the best of them; they minimise the step.
Leaves out that R is moved ahead of the backward that needs it.
"""

from dataclasses import replace
from functools import partial

from simulator.schedules import group_interleaved, interleaved_zb, v_half, v_min, zb_auto, zb_v
from simulator.schedules.job_shop_orders import sought
from simulator.schedules.kind import Orders, Request, ScheduleKind


def _half_interleaved(request: Request) -> Orders:
    """Return `group-interleaved` of half groups, which hold about half of what whole ones do."""
    return group_interleaved.orders(replace(request, group_size=max(1, request.graph.num_ranks // 2)))


MAKERS = (
    zb_v.KIND.orders, v_half.KIND.orders, v_min.KIND.orders, interleaved_zb.KIND.orders, group_interleaved.orders,
    _half_interleaved,
)  # fmt: skip
"""Schedules that are started from where they run, in addition to the sweeps of `zb-auto`."""
MOST_SWEEPS = 48


def orders(request: Request) -> Orders:
    """Return the best orders that are found.

    Raises
    ------
    NoPlanFits
        When none are found within the memory limit.
    """
    sweeps = partial(zb_auto.swept, most_sweeps=int(MOST_SWEEPS * request.effort))
    return sought("graph-zb", request, (sweeps, *MAKERS), split=True)


KIND = ScheduleKind(
    name="graph-zb",
    placement="graph",
    split=True,
    description="Split backwards on any stage graph, the order sought for the shortest step within a memory limit",
    source="this project; before it Qi et al., Zero bubble pipeline parallelism, ICLR 2024 (arXiv:2401.10241), and "
    "Jeon et al., GraphPipe, ASPLOS 2025 (arXiv:2406.17145)",
    orders=orders,
    synthesis=True,
)
