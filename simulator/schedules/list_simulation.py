"""Orders of ranks with several stages, found by a list simulation over time.

Every rank takes, whenever it is free, a ready backward first (lowest micro-batch, then highest stage
index), else a ready forward whose stage has fewer actions in flight than its number (highest stage
index first). Ranks with one stage keep the fixed 1F1B order. Delays of edges are counted, memory is
not: the numbers in flight bound it. Starts at once on what is ready, never looks ahead.
"""

import heapq

from costmodel.stages.costs import Costs, StageCost, at
from simulator.actions import Action, Kind
from simulator.dependencies import carries_gradient, overlapping
from simulator.schedule import StageGraph
from simulator.schedules.kind import Orders
from simulator.schedules.one_stage import forwards, one_forward_one_backward

Step = tuple[Kind, int, int]
"""Kind, stage and (first) micro-batch of an action."""


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
    """State of the simulation: what each action still waits for, and how far each stage of each rank has come."""

    def __init__(self, costs: Costs, graph: StageGraph, num_microbatches: int, in_flight: tuple[int, ...]) -> None:
        self.costs, self.graph, self.in_flight = costs, graph, in_flight
        self.p2p_ns = {ends: e.p2p_ns for e in costs.edges for ends in ((e.source, e.target), (e.target, e.source))}
        back = [e for e in graph.edges if carries_gradient(graph, e)]
        places = range(graph.num_stages)
        self.inputs = {
            Kind.F: graph.predecessors,
            Kind.B: tuple(tuple(e.target for e in back if e.source == stage) for stage in places),
        }
        self.outputs = {
            Kind.F: graph.successors,
            Kind.B: tuple(tuple(e.source for e in back if e.target == stage) for stage in places),
        }
        self.num_missing: dict[Step, int] = {}
        self.ready_ns: dict[Step, int] = {}
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
                for wake in self._start(action, rank, now):
                    heapq.heappush(wakes, wake)
        return tuple(map(tuple, self.orders))

    def _pick(self, rank: int, now: int) -> Action | None:
        if rank in self.fixed:
            row, index = self.fixed[rank], len(self.orders[rank])
            if index == len(row):
                return None
            return row[index] if self._ready((row[index].kind, row[index].stage, row[index].microbatch), now) else None
        stages = self.stages[rank]
        backwards = [(k, -stage) for stage in stages if (k := self._next(Kind.B, rank, stage, now)) is not None]
        if backwards:
            microbatch, stage = min(backwards)
            return Action(Kind.B, -stage, microbatch)
        for stage in reversed(stages):
            flying = self.done[Kind.F, rank, stage] - self.done[Kind.B, rank, stage]
            if not self.graph.backward[stage] or flying < self.in_flight[stage]:
                ahead = self._next(Kind.F, rank, stage, now)
                if ahead is not None:
                    return Action(Kind.F, stage, ahead)
        return None

    def _next(self, kind: Kind, rank: int, stage: int, now: int) -> int | None:
        """Return the micro-batch of a stage's next action of a kind, if it can start now."""
        index, todo = self.done[kind, rank, stage], self.todo[rank, stage]
        if index == len(todo) or (kind is Kind.B and not self.graph.backward[stage]):
            return None
        return todo[index] if self._ready((kind, stage, todo[index]), now) else None

    def _ready(self, step: Step, now: int) -> bool:
        return self._missing(step) == 0 and self.ready_ns.get(step, 0) <= now

    def _missing(self, step: Step) -> int:
        """Return how many inputs are still to come; a backward also waits for its own forward."""
        if step not in self.num_missing:
            kind, stage, first = step
            stop = first + self.graph.multiples[stage]
            inputs = sum(len(overlapping(self.graph, other, first, stop)) for other in self.inputs[kind][stage])
            self.num_missing[step] = inputs + (kind is Kind.B)
        return self.num_missing[step]

    def _start(self, action: Action, rank: int, now: int) -> list[tuple[int, int]]:
        """Run an action; return when which ranks have something new to do."""
        kind, stage, first = action.kind, action.stage, action.microbatch
        end_ns = now + _duration_ns(self.costs.stages[stage], kind, first // self.graph.multiples[stage])
        self.free_ns[rank] = end_ns
        self.done[kind, rank, stage] += 1
        self.orders[rank].append(action)
        if kind is Kind.F:
            self._arrive((Kind.B, stage, first), end_ns)
        wakes = [(end_ns, rank)]
        stop = first + self.graph.multiples[stage]
        for target in self.outputs[kind][stage]:
            for group in overlapping(self.graph, target, first, stop):
                reader = self.graph.rank_of(target, group)
                delay_ns = self.p2p_ns[stage, target] if reader != rank else 0
                if self._arrive((kind, target, group), end_ns + delay_ns):
                    wakes.append((self.ready_ns[kind, target, group], reader))
        return wakes

    def _arrive(self, step: Step, at_ns: int) -> bool:
        """Count an input of an action; return whether it was the last one."""
        self.num_missing[step] = self._missing(step) - 1
        self.ready_ns[step] = max(self.ready_ns.get(step, 0), at_ns)
        return self.num_missing[step] == 0


def _duration_ns(cost: StageCost, kind: Kind, index: int) -> int:
    if kind is Kind.F:
        return at(cost.forward_ns, index)
    return at(cost.recompute_ns, index) + at(cost.backward_input_ns, index) + at(cost.backward_weight_ns, index)
