"""The bound of a search: the least over its families, and over replicas that differ by stage, which no family holds.

Leaves out where the bound of one family comes from (`Setting.bound_ns`, `closed_form`, the solver, `exact`).
"""

from collections.abc import Collection

from planner.candidate.candidate import is_looped
from planner.search.family import Family
from planner.search.incumbent import Incumbent
from planner.search.limits import Limits
from planner.search.setting import Setting
from planner.search.varied import may_vary
from simulator.bounds import bound_of


class FamilyBounds:
    """What is known of each family.

    Attributes
    ----------
    of : dict of Family to int
        A bound on the step of every candidate of a family, ns.
    impossible : set of Family
        Those of which it is proved that no candidate fits into memory.
    seen_all : bool
        Whether every family was looked at; else nothing bounds those that were not.
    """

    def __init__(self, setting: Setting, incumbent: Incumbent) -> None:
        self.setting, self.incumbent = setting, incumbent
        self.of: dict[Family, int] = {}
        self.impossible: set[Family] = set()
        self.seen_all = True

    def know(self, family: Family) -> None:
        """Take a family that was found before it was looked at."""
        self.of.setdefault(family, self.setting.bound_ns(family) or 0)

    def settle(self, limits: Limits) -> None:
        """Raise the least bound of the families that count until it is the least that needs no search; tell it."""
        closed: set[Family] = set()
        while counting := self.counting:
            family = min(counting, key=self.of.__getitem__)
            if family in closed or limits.over:
                break
            closed.add(family)
            self.of[family] = max(self.of[family], self.setting.closed_form_ns(family))
        rises = self.least_ns > self.incumbent.lower_bound_ns
        self.incumbent.lower_bound_ns = self.least_ns
        if rises:
            self.incumbent.say("bound")

    @property
    def counting(self) -> list[Family]:
        """Families that count for the bound: while one stage a rank is best, those of one stage a rank.

        Of several stages a rank little is known but their work; where their plan is no better, its bound stands beside
        (`looped_ns`). A proof is of all.
        """
        whole = [family for family in self.of if family.chunks == 1]
        looped = bool(self.incumbent.found) and is_looped(self.incumbent.best.candidate.places)
        return list(self.of) if looped or not whole or self.setting.problem.exact else whole

    @property
    def least_ns(self) -> int:
        """The least bound of the families that count; 0 where there is none."""
        return self._least_ns(self.counting)

    @property
    def looped_ns(self) -> int | None:
        """The least bound of the families that do not count; None where all do."""
        counting = set(self.counting)
        return min((bound_ns for family, bound_ns in self.of.items() if family not in counting), default=None)

    @property
    def proved(self) -> bool:
        """Whether no family at all may hold anything better than the best."""
        best = self.incumbent.best
        return best.fits and best.step_time_ns == self._least_ns(self.of)

    def _least_ns(self, of: Collection[Family]) -> int:
        families, num = self.setting.families, self.setting.problem.num_devices
        if not self.seen_all:
            return 0
        # replicas by stage may use all devices, however few stages are allowed
        alone = [families.even_ns(family, num) or 0 for family in of if family.devices_a_place == 1]
        known = [self.of[family] for family in of]
        return min([*known, *(alone if may_vary(self.setting) else ())], default=0)

    @property
    def nothing_fits(self) -> bool:
        """Whether it is proved that nothing does; replicas by stage keep fewer micro-batches in flight each."""
        all_known = self.seen_all and bool(self.of) and self.impossible == set(self.of)
        return all_known and not may_vary(self.setting)

    def take_orders_of_pinned(self) -> None:
        """Bound every order of stages that pins give whole, at each micro-batch size, and nothing else."""
        self.of = {}
        for each in self.incumbent.found.values():
            family = self.setting.family_of.get(each.candidate)
            if family:
                evaluator = self.setting.evaluator(family.microbatch_size)
                run = evaluator.simulate(each.candidate)
                speeds = evaluator.speeds_of(run.blocks)
                bound_ns = bound_of(run.times.structure.schedule, run.times.costs, speeds=speeds).ns
                self.of[family] = min(bound_ns, self.of.get(family, bound_ns))
