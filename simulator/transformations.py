"""Changes to the orders of any schedule: what a rank does besides, where it does it.

Recompute: a stage keeps only its input, and an R runs its forward again before the backward. R waits for its own
forward alone, so where it stands directly before the backward it runs while the rank waits for the gradient. Leaves
out offload.
"""

from collections.abc import Collection
from dataclasses import replace

from costmodel.errors import InvalidInput
from simulator.actions import Action, Kind
from simulator.schedule import Schedule


def with_recompute(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """Put an R directly before each backward of some stages.

    Parameters
    ----------
    schedule : Schedule
        Of the catalogue or one's own; its costs say how long R takes (`recompute_ns`) and what stays (the bytes of
        the stage's edges).
    stages : collection of int

    Raises
    ------
    InvalidInput
        For a stage that is not there, has no backward, or recomputes already.
    """
    graph = schedule.graph
    for stage in stages:
        if not 0 <= stage < graph.num_stages or not graph.backward[stage]:
            raise InvalidInput(
                f"stage {stage} has no backward to recompute for; stages are 0 to {graph.num_stages - 1}"
            )
    if any(action.kind is Kind.R and action.stage in stages for order in schedule.orders for action in order):
        raise InvalidInput("the orders hold an R of one of these stages already; take the schedule without")
    orders = tuple(
        tuple(part for action in order for part in _with_its_recompute(action, stages)) for order in schedule.orders
    )
    return replace(schedule, orders=orders)


def _with_its_recompute(action: Action, stages: Collection[int]) -> tuple[Action, ...]:
    if action.kind in (Kind.B, Kind.I) and action.stage in stages:
        return replace(action, kind=Kind.R), action
    return (action,)
