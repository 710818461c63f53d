"""The cuts of one family: what the partition search sees of a problem.

Places are in a loop, or, for stages that pins fix, where these say; what no pin fixes is on the ranks left, in
order. Leaves out which cuts are worth trying.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.errors import NoPlanFits
from costmodel.stages.config import recomputed
from costmodel.stages.costs import largest
from planner.candidate.candidate import IN_FLIGHT, Candidate, StagePlacement, in_loop
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.candidate.order import WITHIN_LIMIT
from planner.graph.atoms import Atoms, Partition
from planner.graph.layers import first_layers
from planner.question.problem import AUTO, AUTO_LOOPED
from planner.question.targets import LINE_TARGETS
from planner.search.space.dropped import Dropped
from planner.search.space.family import Family
from planner.search.space.family_work import Families
from planner.search.space.open_choices import allows_custom_in_flight
from planner.search.space.pinned import PinnedPlaces
from simulator.schedules import SCHEDULES
from simulator.schedules.list_simulation import Numbers


@dataclass(frozen=True)
class FamilyPartitions:
    """One family's cuts between one set of atoms.

    Attributes
    ----------
    evaluator : Evaluator
        Of the family's micro-batch size.
    families : Families
    family : Family
    pinned : PinnedPlaces
        Atoms that pins make stages of their own.
    family_of : dict of Candidate to Family
        Filled with every candidate that is evaluated here; all families of a search share it.
    """

    evaluator: Evaluator
    families: Families
    family: Family
    pinned: PinnedPlaces
    family_of: dict[Candidate, Family]

    @property
    def atoms(self) -> Atoms:
        """The pieces between which cuts are sought."""
        return self.evaluator.atoms

    @property
    def dropped(self) -> Dropped:
        """What the search has dropped."""
        return self.families.dropped

    @property
    def num_microbatches(self) -> int:
        """Micro-batches that one replica works on."""
        return self.evaluator.num_microbatches // self.family.config.data

    @cached_property
    def num_places(self) -> int:
        """Most places of a pipeline."""
        if self.pinned.places:
            free = self.pinned.num_free_ranks // self.family.devices_per_stage
            return len(self.pinned.places) + free
        return self.families.max_pipeline_stages(self.family)

    def about_actions(self, places: int) -> int:
        """Return about how many actions a plan of stages in a line has: F and B, and messages to two neighbours.

        Where replicas do the same, of one of them.
        """
        num_stages = places * self.family.chunks
        again = self.family.config.recompute == "full"
        closing = 2 * num_stages
        return self.num_microbatches * (num_stages * (2 + again) + 4 * (num_stages - 1)) + closing

    @property
    def num_stages(self) -> int:
        """Most stages."""
        return self.num_places * self.family.chunks

    @property
    def fixed_stages(self) -> int | None:
        """The number of stages, where it is fixed."""
        fixed = self.evaluator.problem.space.stages
        return fixed * self.family.chunks if fixed else None

    @cached_property
    def schedules(self) -> tuple[str, ...]:
        """Schedules to try, the simplest first."""
        problem = self.evaluator.problem
        if problem.schedule != AUTO:
            return problem.schedules
        if self.family.split:
            return (WITHIN_LIMIT,)
        if self.family.chunks > 1:
            return AUTO_LOOPED
        return (*problem.schedules, *(AUTO_LOOPED if self.pinned.share_ranks else ()))

    @property
    def splits_backward(self) -> bool:
        """Whether backwards are split, one stage a place."""
        return self.family.chunks == 1 and all(SCHEDULES[name].split for name in self.schedules)

    @property
    def allows_custom_in_flight(self) -> bool:
        """Whether the micro-batches in flight of each stage are open."""
        whole = self.family.chunks == 1 and not self.family.split
        return whole and not self.pinned.in_flight and allows_custom_in_flight(self.evaluator.problem)

    @property
    def always_line(self) -> bool:
        """Whether stages must form a line."""
        problem = self.evaluator.problem
        return problem.planner == "chain" or problem.target in LINE_TARGETS

    @cached_property
    def works_ns(self) -> tuple[int, ...]:
        """What each atom takes of one micro-batch on one rank, F, I and W together."""
        each = self.families.works_ns(self.family)
        return tuple(sum(each[operator] for operator in members) for members in self.atoms.members)

    @cached_property
    def closing_ns(self) -> tuple[int, ...]:
        """What each atom adds once a step, sums of gradients and the optimizer: its part by bytes, an estimate."""
        sizes = self.atoms.trained_bytes
        whole_ns, total = self.families.closing_ns(self.family), max(1, sum(sizes))
        return tuple(whole_ns * size // total for size in sizes)

    @cached_property
    def accumulation_ns(self) -> tuple[int, ...]:
        """What adding up gradients takes of each atom, for one micro-batch; a shared parameter's with its first reader.

        Rounded down where operators stay whole; an estimate where they are divided.
        """
        found = [0] * len(self.atoms)
        if self.num_microbatches > 1:
            known = [model.measured.accumulation for model in self.families.models(self.family.microbatch_size)]
            for name, atom in self.atoms.trained_by.items():
                found[atom] += min(each.at_least(name) for each in known) // self.family.config.tensor
        return tuple(found)

    @cached_property
    def paces_ns(self) -> tuple[int, ...]:
        """What each atom takes of one micro-batch on one rank, gradients added up."""
        return tuple(map(sum, zip(self.works_ns, self.accumulation_ns, strict=True)))

    @cached_property
    def shares_ns(self) -> tuple[int, ...]:
        """What each atom takes of a step, divided by its micro-batches."""
        return tuple(p + c // self.num_microbatches for p, c in zip(self.paces_ns, self.closing_ns, strict=True))

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """Speed of each place: that of its slowest rank, in units of the slowest type of device."""
        speeds, size = self.families.speeds(self.family), self.family.devices_per_stage
        return tuple(min(speeds[i * size : (i + 1) * size]) for i in range(max(1, len(speeds) // size)))

    @property
    def stage_speeds(self) -> tuple[float, ...]:
        """Speed of the place of each stage, of the most stages."""
        return tuple(self.speeds[stage % self.num_places] for stage in range(self.num_stages))

    def at_places(self, amounts_ns: Sequence[int], num_stages: int) -> list[list[int]]:
        """Return what items of these amounts take on the place of each stage."""
        places = max(1, num_stages // self.family.chunks)
        rows = {speed: [round(ns / speed) for ns in amounts_ns] for speed in set(self.speeds[:places])}
        return [rows[self.speeds[stage % places]] for stage in range(num_stages)]

    @cached_property
    def memory_can_bind(self) -> bool:
        """Whether a rank could be over its limit with the whole model and all micro-batches in flight.

        Messages are held at both ends: each tensor counts twice more for a micro-batch.
        """
        limits = [limit for limit in self.evaluator.problem.memory_limits_bytes if limit]
        if not limits:
            return False
        pricer = self.evaluator.pricer
        try:
            whole = pricer.price((0,) * len(self.atoms), self.places((0,) * len(self.atoms))).costs.stages[0]
        except NoPlanFits:  # no host has room for all of it
            return True
        kept = largest(whole.activation_bytes)
        flowing = 3 * pricer.message_bytes([flow.tensor for flow in self.atoms.flows], self.family.config, 1)
        return whole.static_bytes + self.num_microbatches * (kept + flowing) > min(limits)

    def places(self, partition: Partition) -> tuple[StagePlacement, ...]:
        """Return where the stages of a partition run."""
        if self.pinned.places:
            return self.pinned.around(partition, self.family.config)
        found = self.places_in_loop(max(partition) + 1)
        count = self.evaluator.problem.space.recompute_layers
        return found if count is None else self._with_layers(partition, found, count)

    def places_in_loop(self, num_stages: int) -> tuple[StagePlacement, ...]:
        """Return the places of a number of stages, all configured as the family is."""
        places, found = max(1, num_stages // self.family.chunks), self.families.arrangements[self.family.arrangement]
        return in_loop(self.family.config, num_stages, places, found.permutation, found.rank_order)

    def _with_layers(
        self, partition: Partition, places: Sequence[StagePlacement], count: int
    ) -> tuple[StagePlacement, ...]:
        """Return places whose stages run their first `count` layers again; a stage without layers runs none."""
        rows: list[list[int]] = [[] for _ in places]
        for stage, members in zip(partition, self.atoms.members, strict=True):
            rows[stage] += members
        names = (first_layers(self.atoms.graph, row, count) for row in rows)
        configs = (recomputed(place.config, row) for place, row in zip(places, names, strict=True))
        return tuple(replace(place, config=config) for place, config in zip(places, configs, strict=True))

    def places_of(self, partition: Partition) -> int:
        """Return in how many places of a loop the stages of a partition run."""
        return max(1, (max(partition) + 1) // self.family.chunks)

    def candidate(self, partition: Partition, schedule: str, *, line: bool, in_flight: Numbers = ()) -> Candidate:
        """Return the candidate that a cut makes."""
        return Candidate(partition, self.places(partition), self.family.microbatch_size, schedule, line, in_flight)

    def evaluate_under(
        self, partition: Partition, schedules: Iterable[str], *, line: bool = False, in_flight: Numbers = ()
    ) -> list[Evaluated]:
        """Simulate a cut under those schedules that run on its places; what cannot be made is dropped."""
        found = []
        for name in schedules:
            with self.dropped.candidate():
                found.append(self.evaluate(partition, name, line=line, in_flight=in_flight))
        return found

    def may_beat(self, best: Evaluated, partition: Partition) -> bool:
        """Whether a cut may be faster than the best one under its schedule: a bound tells, where orders are sought.

        To seek an order takes a hundred times as long as the bound.
        """
        known = best.candidate
        if known.schedule != WITHIN_LIMIT or not best.fits:
            return True
        candidate = self.candidate(partition, known.schedule, line=known.line or self.always_line)
        return self.evaluator.least_ns(candidate) < best.step_time_ns

    def evaluate(
        self, partition: Partition, schedule: str = "", *, line: bool = False, in_flight: Numbers = ()
    ) -> Evaluated:
        """Simulate a cut; under the first schedule by default."""
        name, fits = schedule or self.schedules[0], len(in_flight) == max(partition) + 1
        numbers = (self.pinned.in_flight_of(partition) or in_flight * fits) if name == IN_FLIGHT else ()
        found = self.evaluator.evaluate(
            self.candidate(partition, name, line=line or self.always_line, in_flight=numbers)
        )
        self.family_of[found.candidate] = self.family
        return found


def by_stage(partition: Partition, amounts: Iterable[int]) -> list[int]:
    """Return the sum of the atoms' amounts for each stage of a cut."""
    sums = [0] * (max(partition) + 1)
    for stage, amount in zip(partition, amounts, strict=True):
        sums[stage] += amount
    return sums
