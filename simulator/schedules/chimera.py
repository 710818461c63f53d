"""`chimera`: two 1F1B pipelines in opposite directions that fill each other's waits.

Every rank has a stage of both, so two copies of the parameters; micro-batches take the directions in turn, and a
stage keeps at most p / 2 of them in flight. The unit is p micro-batches. Each unit is laid into the free slots that
those before it leave, in the order of a list simulation of one unit, where forwards and backwards take one slot
each and delays none; so the order does not change with the costs. Leaves out forward doubling and backward halving.
"""

from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import Action, Kind
from simulator.engine import Structure
from simulator.schedule import Schedule, StageGraph
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.list_simulation import list_orders
from simulator.schedules.placement import two_way


def orders(request: Request) -> Orders:
    """Return the orders of units laid one after the other.

    Raises
    ------
    UsageError
        When the stages are not placed both ways, or ranks or micro-batches are odd in number.
    """
    graph, num_microbatches = request.graph, request.num_microbatches
    two_way("chimera", graph, num_microbatches)
    slots = _Slots(graph)
    for first in range(0, num_microbatches, graph.num_ranks):
        for action in _unit(graph):
            if first + action.microbatch < num_microbatches:
                slots.lay(Action(action.kind, action.stage, first + action.microbatch))
    return tuple(tuple(row[slot] for slot in sorted(row)) for row in slots.rows)


def _unit(graph: StageGraph) -> list[Action]:
    """Return p micro-batches in the order of their starts."""
    p = graph.num_ranks
    edges = tuple(EdgeCost(edge.source, edge.target) for edge in graph.edges)
    costs = Costs((StageCost(1, 1, 0),) * p, edges, graph.ranks)
    rows = list_orders(costs, graph, p, tuple(_in_flight(p, stage) for stage in range(p)))
    times = Structure(Schedule("chimera", graph, p, rows)).times(costs)
    return [times.actions[index] for index in times.start.argsort(kind="stable")]


def _in_flight(p: int, stage: int) -> int:
    return min(p // 2, p - stage)


class _Slots:
    """Which action takes which slot of each rank, and when each action is done."""

    def __init__(self, graph: StageGraph) -> None:
        self.graph = graph
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
        stage, k, last = action.stage, action.microbatch, self.graph.num_stages - 1
        if action.kind is Kind.B:
            after = [Action(Kind.B, stage + 1, k)] if stage < last else []
            return [Action(Kind.F, stage, k), *after]
        room = k - 2 * _in_flight(last + 1, stage)  # micro-batches of one direction are every other one
        found = [Action(Kind.F, stage - 1, k)] if stage else []
        found += [Action(Kind.B, stage, room)] if room >= 0 else []
        return found + ([Action(Kind.F, stage, k - 2)] if k >= 2 else [])


KIND = ScheduleKind(
    name="chimera",
    placement="two-way",
    split=False,
    description="Two opposite 1F1B pipelines, merged: half the bubble for two copies of the parameters",
    source="Li and Hoefler, Chimera, SC 2021 (arXiv:2107.06925)",
    orders=orders,
)
