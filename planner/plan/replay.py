"""A plan file back in the simulator: its schedule, and its timeline under another mode of transfer.

What the simulator calls a rank is a block of the plan (`planner.plan.lockstep`), one lead for all that work in
lockstep.
"""

from costmodel.errors import InvalidInput
from planner.plan import Plan
from simulator.actions import parse_action
from simulator.schedule import Schedule, stage_graph
from simulator.timeline import Timeline


def plan_schedule(plan: Plan) -> Schedule:
    """Return the lowered schedule that a plan carries."""
    try:
        orders = tuple(tuple(map(parse_action, order)) for order in plan.lead_orders)
    except InvalidInput as error:
        raise InvalidInput(f"/ranks: {error}") from None
    return Schedule(plan.schedule, stage_graph(plan.costs()), plan.batch.num_microbatches, orders)


def replay(plan: Plan, p2p: str = "latency") -> Timeline:
    """Simulate a plan's own orders and costs, with the speeds of its ranks."""
    from simulator.engine import simulate  # numpy only where it is used

    return simulate(plan_schedule(plan), plan.costs(), p2p=p2p, speeds=plan.speeds)


def depth(plan: Plan) -> int:
    """Return the number of stages on the longest path of the stage graph."""
    graph = stage_graph(plan.costs())
    longest = [1] * graph.num_stages
    for stage in graph.order:
        longest[stage] = 1 + max((longest[p] for p in graph.predecessors[stage]), default=0)
    return max(longest)
