"""Memory of a rank as its order fixes it: what is held while each action runs.

An activation is taken at F's start, or at R's where the order has one; what only I needs of it is freed at the end
of I, the rest at the end of W, all of it at the end of B; a stage without backward frees it at the end of F. As a
rank runs one action at a time, its peak depends on its order alone. Leaves out send and receive buffers and
the inputs kept for R, which depend on times.
"""

from collections.abc import Iterator

from costmodel.stages.costs import Costs
from simulator.actions import COMPUTE, Action, Kind
from simulator.bounds.amount_of_action import amount_of
from simulator.schedule import Schedule


def held_bytes(schedule: Schedule, costs: Costs, rank: int) -> Iterator[int]:
    """Yield for each action of a rank's order the bytes held while it runs, static part included."""
    graph, order = schedule.graph, schedule.orders[rank]
    again = {action for action in order if action.kind is Kind.R}
    held = sum(costs.stages[stage].static_bytes for stage in graph.stages_of(rank))
    for action in order:
        taken, freed = _change(schedule, costs, action, again) if action.kind in COMPUTE else (0, 0)
        held += taken
        yield held
        held -= freed


def _change(schedule: Schedule, costs: Costs, action: Action, again: set[Action]) -> tuple[int, int]:
    """Bytes that an action takes at its start and frees at its end."""
    graph, cost = schedule.graph, costs.stages[action.stage]
    whole, kept = (
        amount_of(amount, action, graph.multiples[action.stage], schedule.num_microbatches, schedule.num_slices)
        for amount in (cost.activation_bytes, cost.weight_activation_bytes)
    )
    if action.kind is Kind.F:
        recomputed = Action(Kind.R, action.stage, action.microbatch, action.slice_index) in again
        taken = 0 if recomputed else whole
        return taken, 0 if graph.backward[action.stage] else taken
    freed = {Kind.R: 0, Kind.B: whole, Kind.I: whole - kept, Kind.W: kept}[action.kind]
    return whole if action.kind is Kind.R else 0, freed
