"""A plan file back in the simulator: its schedule, and its timeline under another mode of transfer.

What the simulator calls a rank is a block of the plan (`planner.plan.lockstep`), one lead for all that work in
lockstep.
"""

from costmodel.errors import InvalidInput, ReadableButWrong
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


def check_recorded(name: str, plan: Plan, timeline: Timeline) -> None:
    """Refuse a plan file that records another step or peak than its orders take.

    Raises
    ------
    ReadableButWrong
        Says both.
    """
    said, found = plan.prediction, (timeline.step_time_ns, max(timeline.peak_memory_bytes))
    if found != (said.step_time_ns, max(said.peak_memory_bytes)):
        raise ReadableButWrong(
            f"{name}: it records a step of {said.step_time_ns} ns and a peak of {max(said.peak_memory_bytes)} bytes; "
            f"its orders take {found[0]} ns and {found[1]} bytes by its own costs; penstock validate says more"
        )


def depth(plan: Plan) -> int:
    """Return the number of stages on the longest path of the stage graph."""
    graph = stage_graph(plan.costs())
    longest = [1] * graph.num_stages
    for stage in graph.order:
        longest[stage] = 1 + max((longest[p] for p in graph.predecessors[stage]), default=0)
    return max(longest)
