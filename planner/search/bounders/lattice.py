"""The bounds of families, raised in a process of its own while this one looks for plans.

The process runs `planner.search.solvers.lattice`.

The family of the least bound comes first, for it alone holds the bound of the search down; the next one follows as soon
as its bound is the least. Once none can rise any further, the estimate of the best plan's family is asked for, for as
long as bounds took until then: a better plan may make others count. Leaves out how a bound is proved.
"""

from contextlib import nullcontext
from dataclasses import replace
from heapq import nsmallest
from operator import itemgetter
from typing import NamedTuple

from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition, numbered
from planner.search.bounders.family_bounds import FamilyBounds
from planner.search.budget import Deadline, OrderPace
from planner.search.solvers.cpsat.child import LatticeRequest, Solver
from planner.search.solvers.lattice.estimate import estimate_of
from planner.search.solvers.relaxation.build import added_units, cut_data
from planner.search.solvers.relaxation.far_sums import far_sums, in_units
from planner.search.solvers.segment_dp import SegmentationParams, segmentations
from planner.search.space.family import Family
from planner.search.space.open_choices import of_least_work, with_split_backward
from planner.search.state.focus import MOST_HALVED, MOST_STAGES

FURTHER = 1.01
"""How far beyond the next family's bound one rises before that is asked for."""
WORK = 100_000_000
"""Pairs of downsets gone through for each deterministic second."""
UNLIMITED = 1e18
"""Pairs, or seconds, where the other ends it."""
BEAM = 4
"""Labels kept where a cut of least estimate is made."""
LEAST_S = 1.0
"""Seconds, or deterministic ones, for which an estimate is asked for at least."""
MOST_WAIT_S = 0.2
"""Most seconds between two looks at the clock while bounds alone are waited for."""


class BoundRequest(NamedTuple):
    """A family whose bound is to rise, or the stages of it with replicas of their own number."""

    family: Family
    by_replicas: bool = False


class LatticeBounder:
    """What is asked for, and what came of it.

    Parameters
    ----------
    bounds : FamilyBounds
        Raised here.
    solver : Solver
        A process for this alone.
    pace : OrderPace
        Of orders of split backwards.

    Attributes
    ----------
    estimates : dict of Family to (int, int)
        The least estimate of a step that was met, and its bound, in ns (`planner.search.solvers.lattice.estimate`).
    """

    def __init__(self, bounds: FamilyBounds, solver: Solver, pace: OrderPace) -> None:
        self._bounds, self._solver, self._setting, self._pace = bounds, solver, bounds.prepared, pace
        self._asked: BoundRequest | None = None
        self._estimates = False
        self._ended: set[BoundRequest] = set()
        self._numbers: dict[BoundRequest, int] = {}
        self.estimates: dict[Family, tuple[int, int]] = {}
        limit = self._setting.problem.effort.deterministic_limit
        self._counted, self._all = limit is not None, WORK * limit if limit is not None else UNLIMITED
        self._work, self._clock = self._all, Deadline(UNLIMITED)

    def hear(self, limits: Deadline, wait_s: float = 0.0) -> None:
        """Take what has come by now, and ask for more; where work is counted nothing is asked before `finish`."""
        if not self._counted:
            self._hear(limits, wait_s)

    def finish(self, limits: Deadline) -> None:
        """Wait for all that may still come."""
        self._hear(limits, 0.0)
        while self._solver.busy and not limits.expired:
            self._hear(limits, min(limits.remaining_s, MOST_WAIT_S))

    def _hear(self, limits: Deadline, wait_s: float) -> None:
        with self._setting.dropped.candidate():
            self._take_all(limits, wait_s)

    def _take_all(self, limits: Deadline, wait_s: float) -> None:
        asked, goes_on = self._asked, False
        for finding in self._solver.received(wait_s):
            if asked is None:
                break
            if finding["kind"] == "bound":
                self._take(asked, finding["ns"])
                self._bounds.settle(limits)
            elif finding["kind"] == "partition":
                self._offer(asked.family, tuple(finding["partition"]), limits)
            elif finding["kind"] == "estimate":
                self.estimates[asked.family] = finding["least_ns"], finding["ns"]
            else:
                self._work -= finding["work"]
                goes_on = not finding["ended"]
        if self._solver.busy and asked and not self._estimates and self._is_moot(asked):
            self._solver.drop()
            goes_on = True
        if self._solver.busy:
            return
        if asked and not goes_on and not self._estimates:  # all is proved, or the process was lost
            self._ended.add(asked)
        if not self._numbers:
            self._clock.restart(UNLIMITED)
        self._asked = None
        if not limits.expired and self._work > 0:
            self._ask(limits)

    def _take(self, asked: BoundRequest, bound_ns: int) -> None:
        """Take what is proved by times alone."""
        if asked.by_replicas:
            self._bounds.replicas.rise(asked.family, bound_ns)
        else:
            self._bounds.rise(asked.family, bound_ns, by_times=True)

    def _is_moot(self, asked: BoundRequest) -> bool:
        """Whether split backwards have come to count, and what is asked for no longer holds the bound down."""
        bounds = self._bounds
        holds_down = not asked.by_replicas and bounds.of[asked.family] <= bounds.least_ns
        return bounds.pool.best.fits and bounds.split_counts > asked.family.split and not holds_down

    def _offer(self, family: Family, partition: Partition, limits: Deadline) -> None:
        cuts, pool = self._setting.cuts(family), self._bounds.pool
        num_actions = cuts.about_actions(cuts.num_places)
        if family.split and (num_actions > MOST_HALVED or not self._pace.allows(num_actions, limits)):
            return
        if cuts.fixed_stages in (None, max(partition) + 1):
            with self._pace.timed(num_actions) if family.split else nullcontext():
                pool.offer(cuts.evaluate_under(partition, cuts.schedules))
            pool.say("cut of the bound")

    def _ask(self, limits: Deadline) -> None:
        """Ask for the family that holds the bound of the search down; if none rises, for the estimate of the best."""
        best, rows = self._bounds.pool.best, self._holding_down()
        if not best.fits or not rows:
            return
        (least_ns, asked), *rest = rows
        own = self._whole_family(best)
        if asked not in self._ended and least_ns < best.step_time_ns and self._is_known(asked.family):
            until_ns = min([best.step_time_ns, *(int(bound_ns * FURTHER) + 1 for bound_ns, _ in rest)])
            self._send(asked, best.step_time_ns, until_ns, limits.remaining_s, self._work)
        elif own and own not in self.estimates and self._is_known(own):
            self.estimates[own] = 0, 0
            seconds, work = max(LEAST_S, self._clock.taken_s), max(WORK * LEAST_S, self._all - self._work)
            aim = min(seconds, limits.remaining_s), min(work, self._work)
            self._send(BoundRequest(own), best.step_time_ns, 0, *aim, self._least_estimate(own, best))

    def _holding_down(self) -> list[tuple[int, BoundRequest]]:
        """Return the two least bounds that count."""
        of, split = self._bounds.of, self._bounds.split_counts
        rows = [(of[family], BoundRequest(family)) for family in self._bounds.counting]
        for family, bound_ns in self._bounds.by_replicas.items():
            rows.append((bound_ns, BoundRequest(with_split_backward(family) if split else family, by_replicas=True)))
        return nsmallest(2, rows, key=itemgetter(0))

    def _whole_family(self, each: Evaluated) -> Family | None:
        """Return the family of a candidate's cut, whose estimate does not depend on how backwards run."""
        found = self._setting.family_of.get(each.candidate)
        return replace(found, split=False) if found else None

    def _least_estimate(self, family: Family, best: Evaluated) -> Partition:
        """Return the cut of a family that has the least estimate, of those that were found or are made for it."""
        cuts, found = self._setting.cuts(family), self._bounds.pool.found.values()
        data = cut_data(cuts, 0, binding=False)
        aim = SegmentationParams(min(cuts.num_stages, MOST_STAGES), cuts.num_microbatches, BEAM)
        groups = segmentations(cuts.atoms, self._setting.orders[0], cuts.works_ns, aim)
        made = [partition for row in groups if (partition := numbered(cuts.atoms, row))]
        known = [each.candidate.partition for each in found if self._setting.family_of.get(each.candidate) == family]
        return min([best.candidate.partition, *known, *made], key=lambda partition: estimate_of(data, partition))

    def _is_known(self, family: Family) -> bool:
        """Whether the lattice bounds a family's cuts."""
        return self._setting.free_bounds.is_bounded_exactly(family) and self._setting.cuts(family).num_places > 1

    def _send(
        self, asked: BoundRequest, best_ns: int, until_ns: int, seconds: float, work: float, estimate: Partition = ()
    ) -> None:
        self._asked, self._estimates = asked, bool(estimate)
        number = self._numbers.setdefault(asked, len(self._numbers))
        family = replace(asked.family, split=False) if asked.by_replicas else asked.family
        cuts = self._setting.cuts(of_least_work(self._setting.problem, family))
        data = cut_data(cuts, 0, binding=False)
        limit_s = UNLIMITED if self._counted else seconds
        request = LatticeRequest(number, data, best_ns, until_ns, limit_s, work, estimate)
        if asked.by_replicas:  # of both kinds of backward: no gradient waited for, and at the price of whole ones
            request = replace(
                request, data=replace(data, split=data.split or asked.family.split), added=added_units(cuts),
                far=in_units(cuts, far_sums(cuts)),
                num_devices=self._setting.problem.num_devices, sharded=family.config.zero > 0,
            )  # fmt: skip
        self._solver.ask(request)
