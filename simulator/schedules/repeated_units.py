"""Orders that repeat a unit of p micro-batches: what `chimera` and `hanayo` share.

The unit's order comes from a list simulation in which forwards and backwards take one slot each and delays none;
each unit is then laid, action by action, into the free slots that those before it leave. So orders do not change
with the costs. A stage keeps at most a given number of micro-batches in flight.
"""

from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import Action, Kind
from simulator.engine import Structure
from simulator.schedule import Schedule, StageGraph
from simulator.schedules.kind import Orders
from simulator.schedules.list_simulation import list_orders


def repeated_units(graph: StageGraph, num_microbatches: int, size: int, in_flight: tuple[int, ...]) -> Orders:
    """Return the orders of units laid one after the other.

    Parameters
    ----------
    size : int
        Micro-batches of a unit.
    in_flight : tuple of int
        For each stage the micro-batches that each of its ranks keeps in flight at most.
    """
    unit, slots = _unit(graph, size, in_flight), _Slots(graph, in_flight)
    for first in range(0, num_microbatches, size):
        for action in unit:
            if first + action.microbatch < num_microbatches:
                slots.lay(Action(action.kind, action.stage, first + action.microbatch))
    return tuple(tuple(row[slot] for slot in sorted(row)) for row in slots.rows)


def _unit(graph: StageGraph, size: int, in_flight: tuple[int, ...]) -> list[Action]:
    """Return the actions of a unit in the order of their starts."""
    edges = tuple(EdgeCost(edge.source, edge.target) for edge in graph.edges)
    costs = Costs((StageCost(1, 1, 0),) * graph.num_stages, edges, graph.ranks)
    rows = list_orders(costs, graph, size, in_flight)
    times = Structure(Schedule("unit", graph, size, rows)).times(costs)
    return [times.actions[index] for index in times.start.argsort(kind="stable")]


class _Slots:
    """Which action takes which slot of each rank, and when each action is done."""

    def __init__(self, graph: StageGraph, in_flight: tuple[int, ...]) -> None:
        self.graph, self.in_flight = graph, in_flight
        self.rows: list[dict[int, Action]] = [{} for _ in range(graph.num_ranks)]
        self.done: dict[Action, int] = {}

    def lay(self, action: Action) -> None:
        """Put an action into the first free slot at which all that it waits for is done."""
        row = self.rows[self.graph.rank_of(action.stage, action.microbatch)]
        slot = max((self.done[need] for need in self._needs(action)), default=0)
        while slot in row:
            slot += 1
        row[slot] = action
        self.done[action] = slot + 1

    def _needs(self, action: Action) -> list[Action]:
        stage, k, copies = action.stage, action.microbatch, len(self.graph.ranks[action.stage])
        if action.kind is Kind.B:
            after = [Action(Kind.B, stage + 1, k)] if stage + 1 < self.graph.num_stages else []
            return [Action(Kind.F, stage, k), *after]
        room = k - copies * self.in_flight[stage]  # a rank's copy takes every so manieth micro-batch
        found = [Action(Kind.F, stage - 1, k)] if stage else []
        found += [Action(Kind.B, stage, room)] if room >= 0 else []
        return found + ([Action(Kind.F, stage, k - copies)] if k >= copies else [])
