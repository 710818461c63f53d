"""Memory of a rank as its order fixes it: what is held while each action runs.

An activation is taken at F's start; what only I needs of it is freed at the end of I, the rest at the end
of W, all of it at the end of B; a stage without backward frees it at the end of F. As a rank runs one action
at a time, its peak depends on its order alone. Leaves out send and receive buffers, which depend on times.
"""

from collections.abc import Iterator, Sequence

from costmodel.costs import Costs, at
from simulator.actions import Action, Kind
from simulator.schedule import StageGraph


def held_bytes(graph: StageGraph, costs: Costs, rank: int, order: Sequence[Action]) -> Iterator[int]:
    """Yield for each action of a rank's order the bytes held while it runs, static part included."""
    held = sum(costs.stages[stage].static_bytes for stage in graph.stages_of(rank))
    for action in order:
        cost = costs.stages[action.stage]
        index = max(0, action.microbatch) // graph.multiples[action.stage]
        whole, kept = at(cost.activation_bytes, index), at(cost.weight_activation_bytes, index)
        if action.kind is Kind.F:
            held += whole
        yield held
        if action.kind is Kind.B or (action.kind is Kind.F and not graph.backward[action.stage]):
            held -= whole
        elif action.kind is Kind.I:
            held -= whole - kept
        elif action.kind is Kind.W:
            held -= kept
