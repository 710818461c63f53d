"""The bounds of families raised in a process of its own, while this one looks for plans (`planner.search.lattice`).

The family of the least bound comes first, for it alone holds the bound of the search down; the next one follows as soon
as its bound is the least. Leaves out how a bound is proved.
"""

from planner.graph.atoms import Partition
from planner.search.cut.build import cut_data
from planner.search.cut.child import LatticeRequest, Solver
from planner.search.family import Family
from planner.search.family_bounds import FamilyBounds
from planner.search.limits import Limits

FURTHER = 1.01
"""How far beyond the next family's bound one rises before that is asked for."""
WORK = 100_000_000
"""Pairs of downsets gone through for each deterministic second."""
UNLIMITED = 1e18
"""Pairs where the clock alone ends it."""
MOST_WAIT_S = 0.2
"""Most seconds between two looks at the clock while bounds alone are waited for."""


class Bounding:
    """What is asked for, and what came of it.

    Parameters
    ----------
    bounds : FamilyBounds
        Raised here.
    solver : Solver
        A process for this alone.
    """

    def __init__(self, bounds: FamilyBounds, solver: Solver) -> None:
        self._bounds, self._solver, self._setting = bounds, solver, bounds.setting
        self._asked: Family | None = None
        self._ended: set[Family] = set()
        self._numbers: dict[Family, int] = {}
        limit = self._setting.problem.effort.deterministic_limit
        self._counted, self._work = limit is not None, WORK * limit if limit is not None else UNLIMITED

    def hear(self, limits: Limits, wait_s: float = 0.0) -> None:
        """Take what has come by now, and ask for more; where work is counted nothing is asked before `finish`."""
        if not self._counted:
            self._hear(limits, wait_s)

    def finish(self, limits: Limits) -> None:
        """Wait for all that may still come."""
        self._hear(limits, 0.0)
        while self._solver.busy and not limits.over:
            self._hear(limits, min(limits.left_s, MOST_WAIT_S))

    def _hear(self, limits: Limits, wait_s: float) -> None:
        family, goes_on = self._asked, False
        for finding in self._solver.heard(wait_s):
            if family is None:
                break
            if finding["kind"] == "bound":
                self._bounds.of[family] = max(self._bounds.of[family], finding["ns"])
                self._bounds.settle(limits)
            elif finding["kind"] == "partition":
                self._offer(family, tuple(finding["partition"]))
            else:
                self._work -= finding["work"]
                goes_on = not finding["ended"]
        if self._solver.busy:
            return
        if family and not goes_on:  # all is proved, or the process was lost
            self._ended.add(family)
        self._asked = None
        if not limits.over and self._work > 0:
            self._ask()

    def _offer(self, family: Family, partition: Partition) -> None:
        cuts, incumbent = self._setting.cuts(family), self._bounds.incumbent
        if cuts.fixed_stages in (None, max(partition) + 1):
            incumbent.offer(cuts.under(partition, cuts.schedules))
            incumbent.say("cut of the bound")

    def _ask(self) -> None:
        """Ask for the family that holds the bound of the search down, if it can rise."""
        incumbent, of = self._bounds.incumbent, self._bounds.of
        family, *rest = sorted(of, key=of.__getitem__)[:2]
        best = incumbent.best
        if family in self._ended or not best.fits or of[family] >= best.step_time_ns:
            return
        if not self._setting.is_cut_exactly(family) or self._setting.cuts(family).num_places < 2:
            return
        until_ns = best.step_time_ns
        if rest:
            until_ns = min(until_ns, int(of[rest[0]] * FURTHER) + 1)
        self._asked = family
        number = self._numbers.setdefault(family, len(self._numbers))
        data = cut_data(self._setting.cuts(family), 0, binding=False)
        self._solver.ask(LatticeRequest(number, data, best.step_time_ns, until_ns, self._work))
