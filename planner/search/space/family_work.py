"""What families take at least, of work, memory and steps, without a search.

Leaves out which families there are (`family.py`), and bounds that need the graph (`prepared.py`, `line_bounds.py`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from costmodel.errors import PenstockError
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies.amounts import NEVER
from planner.question.problem import Problem
from planner.search.space.family import Family, FamilySpace


class Families(FamilySpace):
    """The families of a problem's space, with a bound for each that takes no search."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._work: dict[object, int | None] = {}
        self._states: dict[StageConfig, int] = {}
        self._kept: dict[tuple[StageConfig, int], int] = {}
        self._updates: dict[object, list[int]] = {}
        self._capacities: dict[object, float] = {}
        self._messages: dict[tuple[StageConfig, int, int], int] = {}
        self._accumulation: dict[tuple[int, int, int], int] = {}
        self._operators: dict[object, list[tuple[int, ...]]] = {}

    def works_ns(self, family: Family) -> tuple[int, ...]:
        """Return what each operator takes of one micro-batch on one rank; on the slowest type of device."""
        return tuple(map(max, zip(*self._works(family), strict=True)))

    def speeds(self, family: Family) -> tuple[float, ...]:
        """Return the speed of each rank, in the family's order: its own times that of its type, the slowest being 1."""
        totals = dict(zip(self.type_names, map(sum, self._works(family)), strict=True))
        names, speeds = self.problem.device_names, self.problem.speeds
        slowest = max(totals.values())
        ranks = self.arrangements[family.arrangement].permutation
        return tuple(slowest / max(1, totals[names[rank]]) * speeds[rank] for rank in ranks)

    def _works(self, family: Family) -> list[tuple[int, ...]]:
        """Return what each operator takes on each type of device."""
        config, ranks = self._spread(family)
        key = config, family.microbatch_size
        if key not in self._operators:
            self._operators[key] = [model.works_ns(config, ranks) for model in self.models(family.microbatch_size)]
        return self._operators[key]

    def least_work_ns(self, family: Family, operators: Sequence[int] | None = None) -> int | None:
        """Return the time of operators (all, or those of the bottleneck chain) together on the fastest type of device.

        None where they cannot be divided as the family has it.
        """
        config = family.config
        key = config.division, family.microbatch_size, operators
        if key not in self._work:
            members = range(len(self.problem.profile.graph.operators)) if operators is None else operators
            try:
                models = self.models(family.microbatch_size)
                works = [model.least_work_ns(members, *self._spread(family)) for model in models]
                self._work[key] = int(min(works) * self._mixed(family, [1.0] * len(works), members))
            except PenstockError as error:
                self._work[key] = None
                self.dropped.refuse(error)
        return self._work[key]

    def _mixed(
        self, family: Family, weights: Sequence[float], operators: Sequence[int], *, again: bool = False
    ) -> float:
        """Return what operators take on the type that is best for each, in parts of what they take on the best one.

        Times on each type count with its weight. Of what is gathered once, runs again, or has no backward, the parts
        are not known: there the least part of any operator counts.
        """
        if len(weights) == 1:
            return 1.0
        rows = [[weight * row[i] for i in operators] for weight, row in zip(weights, self._works(family), strict=True)]
        best, least = min(rows, key=sum), list(map(min, zip(*rows, strict=True)))
        config, graph = family.config, self.problem.profile.graph
        trained = all(graph.operators[i].trainable for i in operators)
        if config.whole_operators and trained and not again:
            return float(sum(least) / max(1, sum(best)))
        parts = [float(part / whole) for part, whole in zip(least, best, strict=True) if whole]
        return min(parts, default=1.0)

    def accumulation_ns(self, family: Family) -> int:
        """Return what adding up all gradients takes of one micro-batch at least."""
        config, models = family.config, self.models(family.microbatch_size)
        if self.microbatches_per_replica(family) == 1:
            return 0
        key = config.tensor, config.num_expert_parts, family.microbatch_size
        if key not in self._accumulation:
            if len(models) == 1:
                self._accumulation[key] = models[0].least_accumulation_ns(config)
            else:
                self._accumulation[key] = self._least_of_types_ns(family)
        rounded = self.max_pipeline_stages(family) * family.chunks  # each stage rounds its part
        return max(0, self._accumulation[key] - rounded)

    def _least_of_types_ns(self, family: Family) -> int:
        """Return what adding up takes where each parameter is added on its best type; 0 where it could be divided."""
        config, problem = family.config, self.problem
        as_profiled = problem.training.precision in ("", problem.profiled_precision)
        if config.tensor * config.num_expert_parts > 1 or not as_profiled:
            return 0
        known = [model.measured.accumulation for model in self.models(family.microbatch_size)]
        return sum(min(each.at_least(name) for each in known) for name in self._trained)

    @cached_property
    def _trained(self) -> frozenset[str]:
        """Parameters that get a gradient."""
        graph = self.problem.profile.graph
        read = {name for operator in graph.operators if operator.trainable for name in operator.parameters}
        return frozenset(name for name in read if graph.parameter_index[name].trainable)

    def states_bytes(self, family: Family) -> int:
        """Return what parameters, gradients and states of the whole model take on one rank of a place."""
        config = replace(family.config, recompute="none")
        if config not in self._states:
            model, ranks = self.models(family.microbatch_size)[0], self.stage_ranks(family)
            self._states[config] = model.states_bytes(config, ranks)
        return self._states[config]

    def kept_bytes(self, family: Family) -> int:
        """Return what the whole model keeps of one micro-batch on one place where nothing is run again.

        Stages hold at least as much together; 0 where operators do not divide so.
        """
        config = replace(family.config, data=1, zero=0, recompute="none", offload="none")
        if (config, family.microbatch_size) not in self._kept:
            try:
                kept = self.models(family.microbatch_size)[0].kept_bytes(config)
            except PenstockError:
                kept = 0
            self._kept[config, family.microbatch_size] = kept
        return self._kept[config, family.microbatch_size]

    def closing_ns(self, family: Family) -> int:
        """Return what the whole model on one place takes after its last backward: sums of gradients, the optimizer.

        On the slowest type of device; 0 where one place cannot have it.
        """
        models, config = self.models(family.microbatch_size), replace(family.config, recompute="none")
        operators, ranks = range(len(self.problem.profile.graph.operators)), self.stage_ranks(family)
        try:
            costs = [model.stage(operators, config, ranks) for model in models]
        except PenstockError:
            return 0
        return max(cost.reduce_ns + cost.optimizer_ns for cost in costs)

    def _updates_ns(self, family: Family, num_places: int) -> list[int]:
        """Return the least time of the optimizer's steps on stages of each device type, which share the model."""
        config = family.config
        key = config.division, config.zero, config.shard_group, config.offload, num_places
        if key not in self._updates:
            ranks, models = self.stage_ranks(family), self.models(family.microbatch_size)
            self._updates[key] = [model.least_update_ns(config, ranks, num_places) for model in models]
        return self._updates[key]

    def again_ns(self, family: Family) -> int:
        """Return what forwards that run again take of one micro-batch, if every stage gains by it."""
        return min(model.again_ns(family.config) for model in self.models(family.microbatch_size))

    def least_again_ns(self, family: Family) -> int:
        """Return what forwards that run again take of one micro-batch at least, so that each place holds one.

        More than any step where nothing that runs again is enough; what lives on hosts needs none.
        """
        most, places = max(self.problem.memory_limits_bytes), self.max_pipeline_stages(family)
        if not all(self.problem.memory_limits_bytes):
            return 0
        room = most * places - self.states_bytes(family)
        if room < 0:
            return NEVER
        if family.config.offload == "activations":
            return 0
        freed, models = self.kept_bytes(family) - room, self.models(family.microbatch_size)
        least = min(model.least_again_ns(family.config, freed) for model in models)
        # one place is one stage, of which all runs again or nothing
        whole = places * family.chunks == 1 and not self.problem.space.recompute_layers
        return max(least, self.again_ns(family)) if least and whole else least

    def _spread(self, family: Family) -> tuple[StageConfig, tuple[int, ...]]:
        """Return what of a configuration decides the times that add up, on the ranks of the first place."""
        config = replace(family.config, zero=0, offload="none", recompute="none")
        return config, self.stage_ranks(family)

    def adds_by_replicas(self, family: Family) -> bool:
        """Whether each replica adds up gradients, however many of a family's single devices a stage has."""
        return self.microbatches_per_replica(family) > self.problem.num_devices // family.devices_per_stage

    def even_ns(
        self, family: Family, num_places: int | None = None, again_ns: int = 0, *, adds: bool = True
    ) -> int | None:
        """Return a bound on the step of every candidate: all its work, divided evenly over its stages.

        Adding up gradients and the optimizer's steps are work, and so is what copies send and nothing can hide: a rank
        sums and steps after its last backward. `again_ns` of each micro-batch are forwards that run again; gradients
        are added up only where it is sure that the family `adds`.

        None where operators do not divide as the family has it.
        """
        if self.least_work_ns(family) is None:
            return None
        places = num_places or self.max_pipeline_stages(family)
        added_ns = self.accumulation_ns(family) * adds
        return max(self._even_ns(family, places, again_ns, added_ns, weights) for weights in self._weights(family))

    def fullest_ns(self, family: Family, num_places: int) -> int:
        """Return the time of all work, with all forwards that may run again, divided evenly over the stages."""
        return self.even_ns(family, num_places, self.again_ns(family)) or 0

    def _weights(self, family: Family) -> list[tuple[float, ...]]:
        """Return how times on each type of device may count in a sum over places: all the same, or with their speed.

        A place works at most all the step, so that any weights make a bound: with w(t) on type t all work takes at
        least the sum of each operator's least w(t) x time, and places have the step times the sum of their w(t).
        """
        if len(self.type_names) == 1:
            return [(1.0,)]
        totals = [max(1, sum(row)) for row in self._works(family)]
        return list(dict.fromkeys([(1.0,) * len(totals), tuple(max(totals) / total for total in totals)]))

    def _even_ns(self, family: Family, places: int, again_ns: int, added_ns: int, weights: tuple[float, ...]) -> int:
        """Return what `even_ns` says with these weights."""
        operators, stages = range(len(self.problem.profile.graph.operators)), places * family.chunks
        config, ranks, models = family.config, self.stage_ranks(family), self.models(family.microbatch_size)
        works = [model.least_microbatch_ns(config, ranks, stages, again_ns) for model in models]
        work = min(_times(weights, works))
        work *= self._mixed(family, weights, operators, again=again_ns > 0)
        each = work + min(weights) * added_ns
        # what copies send while their places do nothing else, and the optimizer's steps
        kinds, alone = self.microbatches_per_replica(family) if len(models) == 1 else 1, family.chunks == 1
        sent = [
            model.least_closing_ns(config, ranks, stages, each / weight, kinds, alone=alone)
            for model, weight in zip(models, weights, strict=True)
        ]
        closing = min(_times(weights, list(map(sum, zip(sent, self._updates_ns(family, places), strict=True)))))
        whole = self.microbatches_per_replica(family) * each + closing
        return int(whole / self._capacity(weights, family.devices_per_stage, places))

    def _capacity(self, weights: tuple[float, ...], size: int, places: int) -> float:
        """Return the largest total speed of stages of `size` ranks, each as fast as its slowest rank."""
        key = weights, size, places
        if key not in self._capacities:
            weight = dict(zip(self.type_names, weights, strict=True))
            ranks = zip(self.problem.device_names, self.problem.speeds, strict=True)
            speeds = sorted((weight[name] * speed for name, speed in ranks), reverse=True)
            self._capacities[key] = sum(speeds[size - 1 : places * size : size])
        return self._capacities[key]

    def work_ns(self, family: Family) -> int | None:
        """Return a bound that takes little time: operators' own work alone, evenly over the most places.

        None where operators do not divide as the family has it.
        """
        models = self.models(family.microbatch_size)
        if len(models) > 1:
            work = self.least_work_ns(family)
        elif self._divides(family.config):
            work = models[0].bare_work_ns(family.config)
        else:
            return None
        return work and int(
            self.microbatches_per_replica(family) * work / self.capacity(family, self.max_pipeline_stages(family))
        )

    @cached_property
    def work_over_devices_ns(self) -> int:
        """Return a bound on every step of the space: the work of all samples, evenly over all devices.

        Each sample takes its work on some t x c ranks, each kind of operator divided as is best for it, for stages may
        differ in that; recompute, messages and split backwards add to it. On unlike devices, where all stages are
        divided alike, each counts as the fastest. 0 where nothing is known.
        """
        problem, fastest = self.problem, max(self.problem.speeds)
        distinct: dict[object, Family] = {}
        for config in sorted(self.degrees, key=lambda each: -each.sequence):  # takes what it divides off a rank
            for size in problem.microbatch_sizes_of(config.data):
                key = config.tensor, config.context, config.expert, config.expert_tensor, size
                distinct.setdefault(key, Family(config, size))
        rows = []
        for family in distinct.values():
            ranks, alone = family.config.tensor * family.config.context, len(self.type_names) == 1
            model, whole_ns = self.models(family.microbatch_size)[0], None if alone else self.least_work_ns(family)
            works = model.bare_works_ns(family.config) if alone else () if whole_ns is None else (whole_ns,)
            rows.append([work * ranks / family.microbatch_size for work in works])
        total = sum(map(min, zip(*filter(None, rows), strict=True)))
        return int(total * problem.global_batch / (problem.num_devices * fastest))

    def capacity(self, family: Family, places: int) -> float:
        """Return the number of stages at speed 1 to which the stages of a family are equal at most."""
        return self._capacity((1.0,) * len(self.type_names), family.devices_per_stage, places)


def _times(weights: Sequence[float], values: Sequence[int]) -> list[float]:
    return [weight * value for weight, value in zip(weights, values, strict=True)]
