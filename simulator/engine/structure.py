"""The fixed part of simulating a schedule, to be timed under many costs.

A `Structure` holds which event waits for which; `times` asks when, under some costs. Making one costs
several times as much as timing it, so searches and what-if questions keep it.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from costmodel.stages.costs import Costs
from simulator.engine.times import Times
from simulator.engine.wired_schedule import P2P_MODES, WiredSchedule

__all__ = ["P2P_MODES", "Structure"]


class Structure(WiredSchedule):
    """Events of a schedule and what they wait for, which can be timed."""

    def times(self, costs: Costs, speeds: Sequence[float] = ()) -> Times:
        """Time the schedule.

        Parameters
        ----------
        costs : Costs
            Of the stage graph that the schedule was made for.
        speeds : sequence of float
            Speed factor of each rank; an action takes round(time / speed) ns, halves up. Default 1.

        Returns
        -------
        Times
        """
        solution = self.solve(costs, speeds)
        return Times(self, costs, lambda: solution)

    def times_many(self, scenarios: Sequence[Costs], speeds: Sequence[Sequence[float]] = ()) -> tuple[Times, ...]:
        """Time the schedule under several costs (and stragglers) at once, which takes less time for each.

        Step times and spans are there at once; what else is asked of a scenario is then computed for it alone.

        Parameters
        ----------
        scenarios : sequence of Costs
        speeds : sequence of sequence of float
            Speed factors of all ranks, for each scenario. Default 1.
        """
        if not scenarios:
            return ()
        speeds = speeds or ((),) * len(scenarios)
        pairs = tuple(zip(scenarios, speeds, strict=True))
        marks = (*self.outer, *self.compute_ends)
        amounts = (self.amounts(*pair) for pair in pairs)
        start, end = self.graph.solve_at(amounts, len(scenarios), np.concatenate(marks))
        first, last, own_first, own_last = np.split(np.arange(len(start)), np.cumsum([len(m) for m in marks])[:-1])
        steps = (end[last].max(axis=0) - start[first].min(axis=0)).tolist()
        spans = (end[own_last] - start[own_first]).max(axis=0, initial=0).tolist()
        return tuple(
            Times(self, pair[0], partial(self.solve, *pair), known)
            for pair, known in zip(pairs, zip(steps, spans, strict=True), strict=True)
        )
