"""Bounds that need no search: of one family, and of all.

Leaves out which family is bounded when (`planner.search.bounders`), and what is proved by a solver.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from operator import add

from costmodel.stages.strategies.amounts import NEVER
from planner.candidate.evaluate import Evaluator
from planner.graph.atoms import Atoms
from planner.graph.bottleneck_operators import BottleneckOperators
from planner.question.problem import Problem
from planner.search.solvers.relaxation.build import closings_of_atoms, cut_data, times_of_atoms
from planner.search.solvers.relaxation.closed_form import closed_form_ns
from planner.search.solvers.relaxation.data import CutData
from planner.search.space.family import Family
from planner.search.space.family_work import Families
from planner.search.space.open_choices import of_least_work
from planner.search.space.partitions import FamilyPartitions
from planner.search.space.pinned import PinnedPlaces
from planner.search.space.pinned_bound import PinnedBound

FUSED = ("gpipe", "1f1b", "eager-1f1b", "graph-1f1b", "graph-eager-1f1b", "graph-kfkb", "graph-auto")
"""Schedules that run F and whole B with one stage a rank."""


class FreeBounds:
    """The bounds of one problem's families that need no search, each worked out once.

    Parameters
    ----------
    problem : Problem
    families : Families
    atoms : Atoms
    pinned : PinnedPlaces
    cuts : function of a Family
        Returns its cuts.
    evaluator : function of a micro-batch size
    """

    def __init__(
        self,
        problem: Problem,
        families: Families,
        atoms: Atoms,
        pinned: PinnedPlaces,
        cuts: Callable[[Family], FamilyPartitions],
        evaluator: Callable[[int], Evaluator],
    ) -> None:
        self._problem, self._families, self._atoms, self._pinned, self._cuts = problem, families, atoms, pinned, cuts
        self._around_pins = PinnedBound(atoms, pinned, families, evaluator)
        self._bounds: dict[object, int | None] = {}
        self._packed: dict[tuple[object, ...], int] = {}
        self._works_of_atoms: dict[tuple[int, bool], list[int]] = {}
        self._data: dict[Family, CutData] = {}

    def bound_ns(self, family: Family, num_places: int | None = None) -> int | None:
        """Return a bound on the step of every candidate of a family, for one number of stages or for any.

        All work and the optimizer's steps divided evenly; the largest atoms, of which one place has several;
        and the filling of the chain of bottleneck operators, to which all else leads or from which it comes: stage i of
        it has b(1) + .. + b(i - 1) + m b(i) <= T, so that all of them hold at most T (1 - (1 - 1/m)^p). None where
        operators do not divide as the family has it.
        """
        config = family.config
        key = (config.division, config.zero, config.offload, config.shard_group, family.microbatch_size, family.chunks,
               family.split, num_places)  # fmt: skip
        if key not in self._bounds:
            self._bounds[key] = self._families.dropped.bound(partial(self._bound_ns, family, num_places))
        return self._bounds[key]

    def _bound_ns(self, family: Family, num_places: int | None) -> int | None:
        if self._pinned.places:
            return self._around_pins.bound_ns(family)
        even_ns = self._families.even_ns(family, num_places)
        if even_ns is None:
            return None
        even_ns = max(even_ns, self._packed_ns(family, num_places))
        if not self.fills(family):
            return even_ns
        places, count = (
            num_places or self._families.max_pipeline_stages(family),
            self._families.microbatches_per_replica(family),
        )
        work = self._families.least_work_ns(family, self.bottlenecks.operators) or 0
        filled = work / (1 - (1 - 1 / count) ** places) if count > 1 else work
        return max(even_ns, int(filled / max(self._problem.speeds)))

    def work_ns(self, family: Family) -> int | None:
        """Return a bound that takes less time still: the work alone."""
        return self.bound_ns(family) if self._pinned.places else self._families.work_ns(family)

    @property
    def work_over_devices_ns(self) -> int:
        """What all work takes evenly over all devices; 0 where pins place stages, which are configured otherwise."""
        if self._pinned.places:
            return 0
        return self._families.dropped.bound(lambda: self._families.work_over_devices_ns) or 0

    def held_ns(self, family: Family, *, adds: bool = True) -> int:
        """Return a bound that counts what has to run again so that a place holds one micro-batch; `NEVER` if none can.

        The last bytes that are over the room of all places together are freed by the operators that do it soonest.
        Where pins place stages, which may be configured otherwise, none.
        """
        if self._pinned.places:
            return 0
        again_ns = self._families.least_again_ns(family)
        if again_ns >= NEVER:
            return NEVER
        return self._families.even_ns(family, None, again_ns, adds=adds) or 0

    def even_by_replicas_ns(self, family: Family) -> int | None:
        """Return a bound for stages with replicas of their own number: all work divided evenly over all devices.

        A replica with one micro-batch adds up no gradients: that spares a stage on m devices or more, m being all
        micro-batches, at most m a, and what it takes besides, t, and its optimizer's step c have T >= t + c. So with q
        such stages, and of a what is no more than c, N T >= L - q m (t + a) - q c + q m T, or T >= L / (N + q); where
        they take all devices, T >= (t + c) / q with t and c of the whole model. Under ZeRO c is what each of all
        devices has of the step. Devices of other speeds count in N by their speed, and in q as the fastest.
        """
        families, devices = self._families, self._problem.num_devices // family.devices_per_stage
        count, even_ns = families.microbatches_per_replica(family), families.even_ns(family, devices)
        if even_ns is None or families.adds_by_replicas(family) or count == 1:
            return even_ns
        alone_ns, cuts = families.even_ns(family, devices, adds=False) or 0, self._cuts(family)
        if family.devices_per_stage > 1:
            return alone_ns
        sharers = devices if family.config.zero else 1  # of the optimizer's step
        closings = [c // sharers for c in closings_of_atoms(cuts)]
        capacity, fastest = sum(self._problem.speeds), max(self._problem.speeds)
        all_ns = alone_ns * capacity + count * sum(map(min, cuts.accumulation_ns, closings))
        once_ns = (families.least_work_ns(family) or 0) + sum(closings)
        found = [even_ns]
        for number in range(1, devices // count + 1):
            whole = once_ns / (number * fastest) if number * count == devices else 0
            found.append(max(alone_ns, int(all_ns / (capacity + number * fastest)), int(whole)))
        return min(found)

    def _packed_ns(self, family: Family, num_places: int | None) -> int:
        """Return what some place takes of the whole step, where operators stay whole: it holds whole atoms.

        Of the (k - 1) p + 1 largest atoms p places hold k in one of them.
        """
        config = family.config
        if not config.whole_operators or not self._as_profiled or self._pinned.places:
            return 0
        places = num_places or self._families.max_pipeline_stages(family)
        sharers = config.num_sharers if config.zero else 1
        key = family.microbatch_size, config.data, sharers, config.offload, places
        if key not in self._packed:
            count, cuts = self._families.microbatches_per_replica(family), self._cuts(family)
            adding = family.microbatch_size, count > 1
            if adding not in self._works_of_atoms:
                forward, backward, _ = times_of_atoms(cuts)
                self._works_of_atoms[adding] = list(map(add, forward, backward))
            rows = zip(self._works_of_atoms[adding], closings_of_atoms(cuts), strict=True)
            loads = sorted((count * work + closing for work, closing in rows), reverse=True)
            packed = (sum(loads[i - k + 1 : i + 1]) for k, i in enumerate(range(0, len(loads), places), start=1))
            self._packed[key] = int(max(packed) / max(self._problem.speeds))
        return self._packed[key]

    @property
    def _as_profiled(self) -> bool:
        """Whether operators take what they took in the profile."""
        return self._problem.training.precision in ("", self._problem.profiled_precision)

    @cached_property
    def bottlenecks(self) -> BottleneckOperators:
        """The chain of bottleneck operators, along which a pipeline has to be filled."""
        return BottleneckOperators(self._atoms)

    def fills(self, family: Family) -> bool:
        """Whether a line has to be filled: one stage a place, F and whole B."""
        return (
            family.chunks == 1
            and not self._pinned.places  # which may have replicas of their own
            and all(name in FUSED for name in self._cuts(family).schedules)
            and bool(self.bottlenecks.operators)
        )

    def is_split_line(self, family: Family) -> bool:
        """Whether one stage a place runs split backwards along a chain of bottlenecks."""
        return self._cuts(family).splits_backward and bool(self.bottlenecks.operators) and not self._pinned.places

    def closed_form_ns(self, family: Family, num_places: int | None = None) -> int:
        """Return a tighter bound, in closed form, where the cut model knows the family."""
        cheap, family = self.bound_ns(family, num_places) or 0, of_least_work(self._problem, family)
        if not self.is_bounded_exactly(family) or num_places == 1:
            return cheap
        if family not in self._data:
            self._data[family] = cut_data(self._cuts(family), 0, binding=False)
        data = self._data[family]
        return max(cheap, closed_form_ns(replace(data, num_stages=num_places or data.num_stages)))

    def is_cut_exactly(self, family: Family) -> bool:
        """Whether the cut model bounds a family: operators whole, one stage a place, F and whole B.

        What several operators gather together once, and stages that share a place, it does not know.
        """
        return all(name in FUSED for name in self._cuts(family).schedules) and self._is_plain(family)

    def is_bounded_exactly(self, family: Family) -> bool:
        """Whether bounds by operators know a family: as the cut model does, or with split backwards."""
        return self.is_cut_exactly(family) or (self._cuts(family).splits_backward and self._is_plain(family))

    def _is_plain(self, family: Family) -> bool:
        config = family.config
        plain = config.whole_operators and family.chunks == 1
        return plain and self._as_profiled and not self._pinned.places
