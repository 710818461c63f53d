"""Orders of schedules, closed for the engine and kept: candidates that differ in costs alone often have the same.

Leaves out what orders take in time and memory (`planner.candidate.evaluate`).
"""

from collections.abc import Sequence
from functools import cached_property

from costmodel.model.whole_model import SplitRatios
from costmodel.stages.costs import Costs
from planner.candidate.candidate import IN_FLIGHT, Candidate
from planner.candidate.fit import NO_LIMIT
from planner.candidate.order import given, in_split_form, ordered
from planner.question.problem import Problem
from simulator.engine import Structure
from simulator.lowering import close_step
from simulator.schedule import stage_graph
from simulator.schedules import build_schedule
from simulator.schedules.warmup import graph_in_flight
from simulator.transformations import with_recompute

EAGER = "graph-eager-1f1b"
"""The one of `FIXED_ORDERS` whose orders depend on times, and not on the stage graph alone."""
FIXED_ORDERS = ("graph-1f1b", "1f1b", "eager-1f1b", "gpipe", EAGER, IN_FLIGHT)
"""Schedules whose orders follow from the stage graph (and `EAGER`'s in-flight numbers) where every stage has a rank of
its own: one structure serves all costs."""
INTERLEAVED = "interleaved-1f1b"
"""The one schedule whose orders follow from the stage graph where stages share ranks."""
MOST_KEPT = 300_000
"""Actions of all orders that are kept: plans are asked for again when they are written."""
ORDERED_S, SOUGHT_S = 25e-6, 100e-6
"""CPU seconds, about, of an action whose order is written down, and of one whose order is sought."""


class KnownOrders:
    """Closed orders of a problem at one micro-batch size.

    Attributes
    ----------
    work_s : float
        CPU seconds about of the orders that were made so far, counted by actions.
    """

    def __init__(self, problem: Problem, microbatch_size: int) -> None:
        self._problem, self._microbatch_size = problem, microbatch_size
        self._structures: dict[object, tuple[Structure, Costs | None]] = {}
        self._num_kept, self.work_s = 0, 0.0

    @cached_property
    def ratios(self) -> SplitRatios:
        """What F, and I with W, take longer where a backward is split."""
        return self._problem.measured(self._microbatch_size).split_ratios

    def closed(
        self, candidate: Candidate, costs: Costs, reduces: tuple[bool, ...], remade: Sequence[bool],
        count: int, limit_bytes: int,
    ) -> tuple[Structure, Costs]:  # fmt: skip
        """Return the closed order of a schedule, and the costs in the form in which stages then run."""
        name, in_flight = candidate.schedule, candidate.in_flight
        backward = tuple(stage.backward for stage in costs.stages)
        again = tuple(stage for stage, made in enumerate(remade) if made and backward[stage])
        key: tuple[object, ...] = (name, candidate.orders, in_flight, again, reduces, count)
        fixed = is_fixed(name, costs) and not candidate.orders
        if fixed:
            edges = tuple((e.source, e.target, e.gradient) for e in costs.edges)
            key += (edges, backward, costs.ranks, costs.multiples)
        else:
            limit = limit_bytes if limit_bytes < NO_LIMIT else None
            key += (costs, limit)
        if name == EAGER and fixed:
            key += tuple(graph_in_flight(costs, stage_graph(costs), count, latency=True))
        if key not in self._structures:
            form = None
            if candidate.orders:
                order, form = given(name, candidate.orders, costs, count, self.ratios)
            elif fixed:
                order = build_schedule(name, costs, count, in_flight=in_flight)
            else:
                order, form = ordered(name, costs, count, self.ratios, in_flight, limit)
            order = with_recompute(order, again) if again else order
            self.work_s += (ORDERED_S if fixed or candidate.orders else SOUGHT_S) * sum(map(len, order.orders))
            self._keep(key, Structure(close_step(order, reduces, self._problem.optimizer != "none")), form)
        self._structures[key] = self._structures.pop(key)
        structure, form = self._structures[key]
        return structure, form or in_split_form(costs, (), self.ratios)

    def _keep(self, wanted: object, structure: Structure, form: Costs | None) -> None:
        """Keep orders, and let go of those asked for longest ago."""
        self._structures[wanted] = structure, form
        self._num_kept += len(structure.arrays.actions)
        while self._num_kept > MOST_KEPT and len(self._structures) > 1:
            first, _ = self._structures.pop(next(iter(self._structures)))
            self._num_kept -= len(first.arrays.actions)


def _has_own_ranks(costs: Costs) -> bool:
    """Whether each stage has one rank, which has no other."""
    return costs.num_ranks >= len(costs.stages) and all(len(ranks) == 1 for ranks in costs.ranks)


def is_fixed(name: str, costs: Costs) -> bool:
    """Whether orders follow from the stage graph alone."""
    return name == INTERLEAVED or (name in FIXED_ORDERS and _has_own_ranks(costs))
