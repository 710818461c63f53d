"""The bound of a search: the least over its families, and over replicas that differ by stage, which no family holds.

Leaves out where the bound of one family comes from (`FreeBounds.bound_ns`, `closed_form`, the solver, `exact`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from heapq import heapify, heappush, heapreplace
from itertools import count, islice, product

from costmodel.errors import NoPlanFits
from costmodel.stages.config import RECOMPUTE
from costmodel.stages.strategies.amounts import NEVER
from planner.candidate.candidate import Candidate, is_looped
from planner.candidate.order import WITHIN_LIMIT
from planner.question.problem import AUTO
from planner.search.bounders.held_chain import held_chain_ns
from planner.search.bounders.pipeline_fill import in_line_ns
from planner.search.bounders.replica_bounds import ReplicaBounds
from planner.search.budget import Deadline
from planner.search.space.family import Family, FamilyGroup
from planner.search.space.open_choices import allows_per_stage_replicas, allows_split_backward, with_split_backward
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from simulator.bounds import bound_of


class FamilyBounds:
    """What is known of each family.

    Attributes
    ----------
    of : dict of Family to int
        A bound on the step of every candidate of a family, ns.
    replicas : ReplicaBounds
        Of stages with replicas of their own number.
    impossible : set of Family
        Those of which it is proved that no candidate fits into memory.
    seen_all : bool
        Whether every family was looked at or is represented by one like it; else nothing bounds those that were not.
    num_seen : int
        Families that were looked at.
    """

    def __init__(self, prepared: PreparedProblem, pool: CandidatePool) -> None:
        self.prepared, self.pool, self.replicas = prepared, pool, ReplicaBounds(prepared)
        self.of: dict[Family, int] = {}
        self._raised: dict[Family, int] = {}
        self._alike: dict[Family, FamilyGroup] = {}
        self._num_split, self._alike_split = 0, set[Family]()
        self.impossible: set[Family] = set()
        self.seen_all, self.num_seen = False, 0

    @cached_property
    def _groups(self) -> Iterator[FamilyGroup]:
        """The groups of families of which none is known yet."""
        return self.prepared.families.groups()

    def know(self, family: Family) -> None:
        """Take a family that was found before it was looked at."""
        if family not in self.of:
            self.of[family], self._raised[family] = self._bound_ns(self.prepared.free_bounds.work_ns, family) or 0, 0

    def rise(self, family: Family, bound_ns: int, *, by_times: bool = False) -> None:
        """Take what is proved of a family in whatever arrangement of its devices.

        What its times alone prove holds where forwards run again, too, which only adds to them.
        """
        number = len(self.prepared.families.arrangements)
        for arrangement, recompute in product(range(number), RECOMPUTE):
            if recompute == family.config.recompute or (by_times and family.config.recompute == "none"):
                one = replace(family, arrangement=arrangement, config=replace(family.config, recompute=recompute))
                if one in self.of:
                    self.of[one] = max(self.of[one], bound_ns)

    def take_unseen(self, limits: Deadline) -> None:
        """Bound families that were not looked at; without time for that nothing bounds them.

        The first represents all that divide operators and batch alike, until its bound, the work alone, is the least.
        """
        while not self.seen_all:
            if limits.expired:
                return
            group = next(self._groups, None)
            if group is None:
                self.seen_all = True
                return
            one = next((family for family in group if family not in self.of), None)
            if one is None:
                continue
            bound_ns = self._bound_ns(self.prepared.free_bounds.work_ns, one)
            if bound_ns is not None:
                self._alike[one] = group
                self.of[one], self._raised[one] = bound_ns, 0

    def num_unseen_above(self, bound_ns: int) -> int:
        """Return how many families that others represent have a bound that is no lower."""
        rows = (group for one, group in self._alike.items() if not one.split and self.of[one] >= bound_ns)
        return sum(sum(family not in self.of for family in group) for group in rows)

    def settle(self, limits: Deadline) -> None:
        """Raise the least bound of the families that count until it is the least that needs no search; tell it."""
        self.replicas.settle(limits, split=self.split_counts)
        self._settle(self.counting, limits)
        rises = self.least_ns > self.pool.lower_bound_ns
        self.pool.lower_bound_ns = self.least_ns
        if rises:
            self.pool.say("bound")

    def settle_split(self, limits: Deadline) -> None:
        """Bound split backwards, too, where these are open and do not count."""
        if allows_split_backward(self.prepared.problem) and not self.split_counts:
            self._split_backward()
            self._settle([family for family in self.of if family.split], limits)

    def _settle(self, families: Iterable[Family], limits: Deadline) -> None:
        number = count()
        rows = [(self.of[family], next(number), family) for family in families]
        heapify(rows)
        while rows and not limits.expired:
            family = rows[0][2]
            level = self._raised.get(family, 1)
            if level == len(self._raise):
                break
            for one in self._stood_for(family) if level == 0 else [family]:
                self.of[one] = max(self.of.get(one, 0), self._bound_ns(self._raise[level], one) or 0)
                self._raised[one] = level + 1
                if self.of[one] >= NEVER:
                    self.impossible.add(one)
                if one is not family:
                    heappush(rows, (self.of[one], next(number), one))
            heapreplace(rows, (self.of[family], next(number), family))

    def _stood_for(self, family: Family) -> list[Family]:
        """Return a family, and those not known yet that it represents no longer."""
        group = self._alike.pop(family, None)
        return [family, *(one for one in group or () if one not in self.of)]

    def _bound_ns(self, bound: Callable[[Family], int | None], family: Family) -> int | None:
        """Return a bound; 0, which excludes nothing, where it cannot be made."""
        return self.prepared.dropped.bound(partial(bound, family))

    @property
    def _raise(self) -> Sequence[Callable[[Family], int | None]]:
        """Bounds that need no search, the dearer the later; families that were looked at have the first."""
        return (
            self.prepared.free_bounds.bound_ns,
            self.prepared.free_bounds.held_ns,
            partial(in_line_ns, self.prepared),
            self._held_chain_ns,
            self.prepared.free_bounds.closed_form_ns,
            self._priced_ns,
        )

    def _held_chain_ns(self, family: Family) -> int:
        """Return a bound of a chain up to the best step that fits; 0 where none is known."""
        best_ns = self.pool.best.step_time_ns if self.pool.best_fits else 0
        return held_chain_ns(self.prepared, family, best_ns) if best_ns else 0

    def _priced_ns(self, family: Family) -> int:
        """Return more than any step where a family's one candidate is over the memory, or no host has room for it."""
        one_stage = self.prepared.families.max_pipeline_stages(family) == family.chunks == 1
        if self.pool.best_fits or self.prepared.pinned.places or not one_stage:
            return 0
        cuts = self.prepared.cuts(family)
        try:
            whole = cuts.evaluate((0,) * len(cuts.atoms))
        except NoPlanFits:
            return NEVER
        return NEVER if whole.excess_bytes else 0

    @property
    def counting(self) -> list[Family]:
        """Families that count for the bound: while one stage a rank is best, those of one stage a rank.

        Of several stages a rank little is known but their work; where their plan is no better, its bound is told in
        addition to (`looped_ns`). So it is with split backwards (`split_backward_ns`). A proof is of all.
        """
        if self.split_counts:
            self._split_backward()
        open_ones = [family for family in self.of if self.split_counts or not family.split]
        whole = [family for family in open_ones if family.chunks == 1]
        looped = bool(self.pool.found) and is_looped(self.pool.best.candidate.places)
        return open_ones if looped or not whole or self.prepared.problem.exact else whole

    def range_over(self, candidate: Candidate) -> bool:
        """Whether bounds of families range over a candidate.

        They do where its stages are configured alike, but for recompute, and for replicas that nothing divides.
        """
        configs = [place.config for place in candidate.places]
        alike = {replace(config, recompute="none", recomputed_operators=()) for config in configs}
        alone = {replace(config, data=1, shard_group=0) for config in alike}
        replicas = {family.config for family in self.replicas.whole}
        return bool(self.prepared.pinned.places) or len(alike) == 1 or (len(alone) == 1 and alone <= replicas)

    @property
    def split_counts(self) -> bool:
        """Whether the best plan runs split backwards that were open in addition to whole ones."""
        found = self.pool.found and self.prepared.problem.schedule == AUTO
        return bool(found) and self.pool.best.candidate.schedule == WITHIN_LIMIT

    def _split_backward(self) -> None:
        """Take the families of split backwards for all families that are known, whose work is no less: the new ones."""
        for family in list(islice(self.of, self._num_split, None)):
            if not family.split and with_split_backward(family) not in self.of:
                one = with_split_backward(family)
                self.of[one], self._raised[one] = self._bound_ns(self.prepared.free_bounds.work_ns, family) or 0, 0
        self._num_split = len(self.of)
        for first in [one for one in self._alike if not one.split and one not in self._alike_split]:
            self._alike_split.add(first)
            self._alike[with_split_backward(first)] = replace(self._alike[first], split=True)

    @property
    def split_backward_ns(self) -> int | None:
        """What split backwards take at least, where these are open and do not count; None elsewhere."""
        if self.split_counts or not allows_split_backward(self.prepared.problem):
            return None
        split = (bound_ns for family, bound_ns in self.of.items() if family.split)
        return min([*split, *self.replicas.split.values()], default=0)

    @property
    def least_ns(self) -> int:
        """The least bound of the families that count; 0 where there is none."""
        return self._least_ns(self.counting)

    @property
    def looped_ns(self) -> int | None:
        """The least bound of the families that do not count; None where all do."""
        counting = set(self.counting)
        rest = (family for family in self.of if family not in counting and family.split <= self.split_counts)
        return min(map(self.of.__getitem__, rest), default=None)

    @property
    def proved(self) -> bool:
        """Whether no family at all may hold anything better than the best."""
        best, split_backward_ns = self.pool.best, self.split_backward_ns
        whole = best.fits and best.step_time_ns == self._least_ns(self.of)
        return whole and (split_backward_ns is None or split_backward_ns >= best.step_time_ns)

    @property
    def known_ns(self) -> int:
        """The bound that was told last; before that what all work takes on all devices."""
        return self.pool.lower_bound_ns or self.prepared.free_bounds.work_over_devices_ns

    def _least_ns(self, of: Collection[Family]) -> int:
        if not self.seen_all:
            return 0
        least = min([*(self.of[family] for family in of), *self.by_replicas.values()], default=0)
        return least if least < NEVER else 0

    @property
    def by_replicas(self) -> dict[Family, int]:
        """Bounds of stages with replicas of their own number, of the kind of backward that counts."""
        return self.replicas.split if self.split_counts else self.replicas.whole

    @property
    def nothing_fits(self) -> bool:
        """Whether it is proved that nothing fits; replicas by stage, and split backwards, may keep fewer in flight."""
        whole = {family for family in self.of if not family.split}
        all_known = self.seen_all and bool(whole) and whole <= self.impossible
        problem = self.prepared.problem
        by_order = any(problem.memory_limits_bytes) and any(self.of[family] < NEVER for family in whole)
        return (
            all_known
            and not (allows_split_backward(problem) and by_order)
            and not allows_per_stage_replicas(self.prepared.problem, self.prepared.pinned)
        )

    def take_orders_of_pinned(self) -> None:
        """Bound every order of stages that pins give whole, at each micro-batch size, and nothing else."""
        self.of, self._num_split, self.seen_all = {}, 0, True
        of_size: dict[int, Family] = {}
        for each in self.pool.found.values():
            family = self.prepared.family_of.get(each.candidate)
            if family:  # any stands for all of its micro-batch size, which hold the same stages
                family = of_size.setdefault(family.microbatch_size, replace(family, split=False))
                split = each.candidate.schedule == WITHIN_LIMIT and self.prepared.problem.schedule == AUTO
                evaluator = self.prepared.evaluator(family.microbatch_size)
                run = evaluator.simulate(each.candidate)
                speeds = evaluator.speeds_of(run.blocks)
                bound_ns = bound_of(run.times.structure.schedule, run.times.costs, speeds=speeds).ns
                one = replace(family, split=split)
                self.of[one] = min(bound_ns, self.of.get(one, bound_ns))
