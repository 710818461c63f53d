"""Orders for priced stages by a schedule of the catalogue, and their prices where it splits backwards.

The stages come priced for F and whole B. With I and W apart F takes longer, and so do I and W together
(`WholeModelMeasurements.split`: values live longer, calls pass through Python), by ratios that were measured on the
whole model. The time of messages is scaled along. A schedule that plans within a limit on any stages gets it; where
it finds no order within, one without says by how much it is too little. Leaves out what split backwards cost a trainer
other than the executor.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

from costmodel.errors import NoPlanFits
from costmodel.model.whole_model import SplitRatios
from costmodel.stages.costs import Amount, Costs, StageCost
from simulator.actions import Action, Kind
from simulator.schedule import Schedule, stage_graph
from simulator.schedules import SCHEDULES, build_schedule
from simulator.schedules.kind import Orders

WITHIN_LIMIT = "graph-zb"
"""The schedule that plans within a memory limit on any stages."""
EFFORT = 0.25
"""Part of the usual work that goes into the orders of one candidate."""


def ordered(
    name: str,
    costs: Costs,
    num_microbatches: int,
    ratios: SplitRatios,
    in_flight: tuple[int, ...] = (),
    limit_bytes: int | None = None,
) -> tuple[Schedule, Costs]:
    """Order micro-batches by a schedule of the catalogue, and price each stage in the form in which it then runs.

    A schedule that splits is made for stages that are all split; a stage that gets no I is then priced whole.

    Raises
    ------
    UsageError, NoPlanFits
        As `build_schedule`.
    """
    splits = name in SCHEDULES and SCHEDULES[name].split
    trained = [index for index, stage in enumerate(costs.stages) if stage.backward] if splits else []
    form = in_split_form(costs, trained, ratios)
    limit = limit_bytes if name == WITHIN_LIMIT else None
    build = partial(build_schedule, name, form, num_microbatches, in_flight=in_flight, effort=EFFORT)
    try:
        schedule = build(memory_limit_bytes=limit)
    except NoPlanFits:
        if limit is None:
            raise
        schedule = build()
    return schedule, in_split_form(costs, _split(schedule.orders), ratios)


def given(
    name: str, orders: Orders, costs: Costs, num_microbatches: int, ratios: SplitRatios
) -> tuple[Schedule, Costs]:
    """Return the schedule of orders that somebody else made for one replica, all replicas alike, and its prices."""
    replicas = len(costs.ranks[0])
    rows = tuple(row for order in orders for row in _of_replicas(order, replicas))
    schedule = Schedule(name, stage_graph(costs), num_microbatches, rows)
    return schedule, in_split_form(costs, _split(orders), ratios)


def _of_replicas(order: tuple[Action, ...], replicas: int) -> Iterator[tuple[Action, ...]]:
    for number in range(replicas):
        yield tuple(replace(action, microbatch=action.microbatch * replicas + number) for action in order)


def _split(orders: Orders) -> set[int]:
    return {action.stage for order in orders for action in order if action.kind is Kind.I}


def in_split_form(costs: Costs, stages: Collection[int], ratios: SplitRatios) -> Costs:
    """Scale F and R, and I and W, of some stages; the others hold what only a whole backward does."""
    scales = bool(stages) and ratios != SplitRatios()
    if not scales and not any(stage.joint_bytes for stage in costs.stages):
        return costs
    found = [_apart(stage) if index in stages else _whole(stage) for index, stage in enumerate(costs.stages)]
    scaled = [_scaled(stage, ratios) if index in stages and scales else stage for index, stage in enumerate(found)]
    return replace(costs, stages=tuple(scaled))


def _apart(stage: StageCost) -> StageCost:
    return replace(stage, joint_bytes=0) if stage.joint_bytes else stage


def _whole(stage: StageCost) -> StageCost:
    if not stage.joint_bytes:
        return stage
    terms = dict(stage.memory_terms)
    terms["communication_buffers"] += stage.joint_bytes
    static = stage.static_bytes + stage.joint_bytes
    return replace(stage, static_bytes=static, memory_terms=tuple(terms.items()), joint_bytes=0)


def _scaled(stage: StageCost, ratios: SplitRatios) -> StageCost:
    return replace(
        stage,
        forward_ns=_times(stage.forward_ns, ratios.forward),
        recompute_ns=_times(stage.recompute_ns, ratios.forward),
        backward_input_ns=_times(stage.backward_input_ns, ratios.backward),
        backward_weight_ns=_times(stage.backward_weight_ns, ratios.backward),
    )


def _times(amount: Amount, ratio: float) -> Amount:
    return round(amount * ratio) if isinstance(amount, int) else tuple(round(value * ratio) for value in amount)
