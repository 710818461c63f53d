"""Orders of ranks with several stages, found by a list simulation over time.

Every rank takes, whenever it is free, a ready backward first (lowest micro-batch, then highest stage
index), else a ready forward whose stage has fewer actions in flight than its number (highest stage
index first). Ranks with one stage keep the fixed 1F1B order. Delays of edges are counted, memory is
not: the numbers in flight bound it. Starts at once on what is ready, never looks ahead.
"""

import heapq

from costmodel.costs import Costs, StageCost, at
from simulator.actions import Action, Kind
from simulator.schedule import StageGraph
from simulator.schedules.kind import Orders
from simulator.schedules.one_stage import forwards, one_forward_one_backward


def list_orders(costs: Costs, graph: StageGraph, num_microbatches: int, in_flight: tuple[int, ...]) -> Orders:
    """Return the orders of all ranks.

    Parameters
    ----------
    in_flight : tuple of int
        For each stage the actions that each of its replicas keeps in flight at most.
    """
    if all(len(graph.stages_of(rank)) == 1 for rank in range(graph.num_ranks)):
        return tuple(fixed_order(graph, rank, num_microbatches, in_flight) for rank in range(graph.num_ranks))
    return _ListSimulation(costs, graph, num_microbatches, in_flight).run()


def fixed_order(graph: StageGraph, rank: int, num_microbatches: int, in_flight: tuple[int, ...]) -> tuple[Action, ...]:
    """Return the 1F1B order of a rank with one stage."""
    (stage,) = graph.stages_of(rank)
    microbatches = graph.microbatches_of(stage, rank, num_microbatches)
    if not graph.backward[stage]:
        return forwards(stage, microbatches)
    return one_forward_one_backward(stage, microbatches, in_flight[stage])


class _ListSimulation:
    """State of the simulation: when actions ended, and how far each stage of each rank has come."""

    def __init__(self, costs: Costs, graph: StageGraph, num_microbatches: int, in_flight: tuple[int, ...]) -> None:
        self.costs, self.graph, self.num_microbatches, self.in_flight = costs, graph, num_microbatches, in_flight
        self.p2p_ns = {ends: e.p2p_ns for e in costs.edges for ends in ((e.source, e.target), (e.target, e.source))}
        self.end_ns: dict[tuple[Kind, int, int], int] = {}
        self.free_ns = [0] * graph.num_ranks
        self.stages = [graph.stages_of(rank) for rank in range(graph.num_ranks)]
        self.todo = {
            (rank, stage): graph.microbatches_of(stage, rank, num_microbatches)
            for rank, stages in enumerate(self.stages)
            for stage in stages
        }
        self.done = {(kind, *key): 0 for key in self.todo for kind in (Kind.F, Kind.B)}
        self.fixed = {
            rank: fixed_order(graph, rank, num_microbatches, in_flight)
            for rank, stages in enumerate(self.stages)
            if len(stages) == 1
        }
        self.orders: list[list[Action]] = [[] for _ in self.stages]

    def run(self) -> Orders:
        wakes = [(0, rank) for rank in range(self.graph.num_ranks)]
        while wakes:
            now, rank = heapq.heappop(wakes)
            # Ends are known when actions start, so the order of ranks within one instant does not matter.
            action = self._pick(rank, now) if now >= self.free_ns[rank] else None
            if action is not None:
                for wake in sorted(self._start(action, rank, now)):
                    heapq.heappush(wakes, wake)
        return tuple(map(tuple, self.orders))

    def _pick(self, rank: int, now: int) -> Action | None:
        if rank in self.fixed:
            row = self.fixed[rank]
            index = len(self.orders[rank])
            return row[index] if index < len(row) and self._ready(row[index], now) else None
        backwards = [a for s in self.stages[rank] if (a := self._next(Kind.B, rank, s)) and self._ready(a, now)]
        if backwards:
            return min(backwards, key=lambda a: (a.microbatch, -a.stage))
        for stage in reversed(self.stages[rank]):
            flying = self.done[Kind.F, rank, stage] - self.done[Kind.B, rank, stage]
            if not self.graph.backward[stage] or flying < self.in_flight[stage]:
                action = self._next(Kind.F, rank, stage)
                if action and self._ready(action, now):
                    return action
        return None

    def _next(self, kind: Kind, rank: int, stage: int) -> Action | None:
        index = self.done[kind, rank, stage]
        most = self.todo[rank, stage]
        if index == len(most) or (kind is Kind.B and not self.graph.backward[stage]):
            return None
        return Action(kind, stage, most[index])

    def _ready(self, action: Action, now: int) -> bool:
        kind, stage, first = action.kind, action.stage, action.microbatch
        if kind is Kind.B and not self.end_ns.get((Kind.F, stage, first), now + 1) <= now:
            return False
        for other in self._sources(kind, stage):
            for group in self._groups(other, stage, first):
                end_ns = self.end_ns.get((kind, other, group))
                if end_ns is None or end_ns + self._delay_ns(other, group, stage, first) > now:
                    return False
        return True

    def _sources(self, kind: Kind, stage: int) -> tuple[int, ...]:
        if kind is Kind.F:
            return self.graph.predecessors[stage]
        return tuple(x for x in self.graph.gradient_successors[stage] if self.graph.backward[x])

    def _groups(self, other: int, stage: int, first: int) -> range:
        size = self.graph.multiples[other]
        return range(first // size * size, first + self.graph.multiples[stage], size)

    def _delay_ns(self, source: int, source_microbatch: int, stage: int, microbatch: int) -> int:
        if self.graph.rank_of(source, source_microbatch) == self.graph.rank_of(stage, microbatch):
            return 0
        return self.p2p_ns[source, stage]

    def _start(self, action: Action, rank: int, now: int) -> list[tuple[int, int]]:
        kind, stage, first = action.kind, action.stage, action.microbatch
        end_ns = now + _duration_ns(self.costs.stages[stage], kind, first // self.graph.multiples[stage])
        self.end_ns[kind, stage, first] = self.free_ns[rank] = end_ns
        self.done[kind, rank, stage] += 1
        self.orders[rank].append(action)
        wakes = {(end_ns, rank)}
        targets = self.graph.successors[stage] if kind is Kind.F else self.graph.predecessors[stage]
        for target in targets:
            for group in self._groups(target, stage, first):
                if group < self.num_microbatches:
                    woken = self.graph.rank_of(target, group)
                    wakes.add((end_ns + self._delay_ns(stage, first, target, group), woken))
        return list(wakes)


def _duration_ns(cost: StageCost, kind: Kind, index: int) -> int:
    if kind is Kind.F:
        return at(cost.forward_ns, index)
    return at(cost.recompute_ns, index) + at(cost.backward_input_ns, index) + at(cost.backward_weight_ns, index)
