"""What is simulated of a plan: where replicas all do the same, the first of them represents the others.

The checker finds whether they do (`planner.checker.replicas`). Ranks of a plan without such replicas represent
themselves and for those that work in lockstep with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.stages.costs import Costs
from planner.checker.replicas import first_replica
from planner.checker.steps import Layout
from planner.plan import Plan
from planner.plan.lockstep import Block
from planner.plan.replay import plan_schedule
from simulator.actions import parse_action
from simulator.schedule import Schedule, stage_graph

FEW_ACTIONS = 50_000
"""Actions of a plan up to which all ranks are simulated, so that people find each by itself."""


@dataclass(frozen=True)
class Simulated:
    """What the simulator takes, which ranks of the plan each of its ranks represents, and how many replicas."""

    schedule: Schedule
    costs: Costs
    speeds: tuple[float, ...]
    blocks: Sequence[Block]
    replicas: int = 1


def everything(plan: Plan) -> Simulated:
    """Return all blocks of a plan."""
    return Simulated(plan_schedule(plan), plan.costs(), plan.speeds, plan.blocks)


def simulated(plan: Plan) -> Simulated:
    """Return all blocks of a plan, or those of the first replica where there are many actions."""
    whole = sum(map(len, plan.lead_orders)) <= FEW_ACTIONS
    first = None if whole else first_replica(plan, Layout.of(plan))
    if first is None:
        return everything(plan)
    blocks: dict[int, list[int]] = {}
    for rank, lead in sorted(first.stand_in.items()):
        blocks.setdefault(lead, []).append(rank)
    number = {lead: i for i, lead in enumerate(blocks)}
    places = tuple((number[stage.ranks[0]],) for stage in plan.stages)
    costs = replace(plan.costs(), ranks=places)
    orders = tuple(tuple(parse_action(step.text) for step in first.orders[lead]) for lead in blocks)
    schedule = Schedule(plan.schedule, stage_graph(costs), first.layout.num_microbatches, orders)
    replicas = plan.batch.num_microbatches // schedule.num_microbatches
    return Simulated(schedule, costs, (), [tuple(row) for row in blocks.values()], replicas)
