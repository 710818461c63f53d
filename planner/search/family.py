"""Families: candidates alike in everything but cut, number of places and schedule; and all of them that a space holds.

A family fixes how each stage is configured, the micro-batch size on one replica, and how many stages a place holds.
Leaves out stages that are configured differently (`planner.search.varied`, pins).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.errors import PenstockError
from costmodel.stages.config import OFFLOAD, RECOMPUTE, StageConfig
from costmodel.stages.costs import least
from costmodel.stages.strategies import StrategyModel
from planner.ask.problem import AUTO, Problem, divisors
from planner.ask.targets import config_not_run
from simulator.schedules import SCHEDULES

CHUNKS = (1, 2, 4)
"""Stages a place that are tried where their number is free."""


@dataclass(frozen=True, slots=True)
class Family:
    """What all candidates of a family have in common."""

    config: StageConfig
    microbatch_size: int
    chunks: int = 1

    @property
    def devices_a_place(self) -> int:
        """Devices on which one place of the pipeline stands."""
        return self.config.data * self.config.tensor * self.config.context


class Families:
    """The families of a problem's space, with a bound for each that takes no search."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.refused = self.not_run = ""
        """Why the last candidate refused could not be divided, placed or ordered, and why the target runs no family."""
        self._work: dict[object, int | None] = {}
        self._states: dict[StageConfig, int] = {}
        self._kept: dict[tuple[StageConfig, int], int] = {}
        self._updates: dict[object, int] = {}
        self._accumulation: dict[int, int] = {}
        self._operators: dict[object, list[tuple[int, ...]]] = {}

    @cached_property
    def all(self) -> tuple[Family, ...]:
        """Every family that the devices, the target and the fixed choices admit, the promising kinds first.

        Of a kind those of least `_estimate_ns`.
        """
        return tuple(sorted(self._all(), key=lambda family: (*self.kind(family), *self._estimate_ns(family))))

    def _all(self) -> Iterator[Family]:
        for config in dict.fromkeys(self._configs()):
            for size in self.problem.microbatch_sizes_of(config.data):
                for chunks in self._chunks(config):
                    yield Family(config, size, chunks)

    def _chunks(self, config: StageConfig) -> tuple[int, ...]:
        problem, fixed = self.problem, self.problem.space.chunks
        if fixed:
            return (fixed,)
        looped = problem.schedule == AUTO or SCHEDULES[problem.schedule].placement == "loop"
        several = looped and self.most_places(Family(config, 1)) > 1
        return CHUNKS if several and problem.pins is None else (1,)

    def _configs(self) -> Iterator[StageConfig]:
        for config in self._degrees():
            for zero in self._zeros(config):
                for recompute in self._values("recompute", RECOMPUTE):
                    for offload in self._values("offload", OFFLOAD):
                        found = replace(config, zero=zero, recompute=recompute, offload=offload)
                        if self._is_run(found) and _is_sensible(found):
                            yield found

    def _degrees(self) -> Iterator[StageConfig]:
        num = self.problem.num_devices // (self.problem.space.stages or 1)
        for tensor in self._degree("tensor", num):
            for context in self._degree("context", num // tensor):
                for data in self._datas(num // (tensor * context)):
                    for expert in self._experts(data * context):
                        for sequence in self._sequences(tensor):
                            yield StageConfig(data, tensor, sequence, context, expert)

    def _degree(self, name: str, most: int) -> tuple[int, ...]:
        """Return degrees that divide the devices, where operators say what they compute and so can be divided."""
        fixed = getattr(self.problem.space, name)
        if fixed:
            return (fixed,) if fixed <= most else ()
        if not self._divisible:
            return (1,)
        return tuple(d for d in divisors(self.problem.num_devices) if d <= most)

    def _datas(self, most: int) -> tuple[int, ...]:
        fixed = self.problem.space.data
        if fixed:
            return (fixed,) if fixed <= most else ()
        return tuple(d for d in divisors(self.problem.global_batch) if d <= most)

    def _experts(self, copies: int) -> tuple[int, ...]:
        fixed = self.problem.space.expert
        if fixed:
            return (fixed,) if copies % fixed == 0 else ()
        return divisors(copies) if self._has_experts else (1,)

    def _sequences(self, tensor: int) -> tuple[int, ...]:
        fixed = self.problem.space.sequence_parallel
        if tensor == 1 or fixed is False:
            return () if fixed else (1,)
        return (tensor,) if fixed else (1, tensor)

    def _zeros(self, config: StageConfig) -> tuple[int, ...]:
        several = config.data * config.context > 1
        return tuple(z for z in range(4) if self.problem.space.allows("zero", z) and (several or z == 0))

    def _values(self, name: str, values: tuple[str, ...]) -> tuple[str, ...]:
        if name == "offload" and not any(host.memory_bytes for host in self.problem.machines.hosts):
            values = (getattr(self.problem.space, name) or "none",)
        return tuple(value for value in values if self.problem.space.allows(name, value))

    def _is_run(self, config: StageConfig) -> bool:
        """Whether the target that was asked for runs such stages; a default target still shows what others run."""
        target, problem = self.problem.target, self.problem
        refusals = [config_not_run(target, problem, config, pipelined) for pipelined in (True, False)]
        if all(refusals):
            self.not_run = refusals[0]
        return not all(refusals)

    @cached_property
    def _divisible(self) -> bool:
        """Whether operators say what they compute, so that they can be divided."""
        return all(operator.work for operator in self.problem.profile.graph.operators)

    @cached_property
    def _has_experts(self) -> bool:
        return any(operator.work and operator.work.experts for operator in self.problem.profile.graph.operators)

    def works_ns(self, family: Family) -> tuple[int, ...]:
        """Return what each operator takes of one micro-batch on one rank; on the slowest type of device."""
        return tuple(map(max, zip(*self._works(family), strict=True)))

    def speeds(self, family: Family) -> tuple[float, ...]:
        """Return the speed of each rank: its own times that of its type, in units of the slowest type of device."""
        totals = dict(zip(dict.fromkeys(self.problem.device_names), map(sum, self._works(family)), strict=True))
        names = zip(self.problem.device_names, self.problem.speeds, strict=True)
        return tuple(max(totals.values()) / max(1, totals[name]) * speed for name, speed in names)

    def _works(self, family: Family) -> list[tuple[int, ...]]:
        """Return what each operator takes on each type of device."""
        config, ranks = self._spread(family)
        key = config, family.microbatch_size
        if key not in self._operators:
            self._operators[key] = [model.works_ns(config, ranks) for model in self.models(family.microbatch_size)]
        return self._operators[key]

    def least_work_ns(self, family: Family, operators: Sequence[int] | None = None) -> int | None:
        """Return what operators (all by default, or the line of waists) take together on the fastest type of device.

        None where they cannot be divided as the family has it.
        """
        config = family.config
        key = (config.data, config.tensor, config.context, config.expert, config.sequence, family.microbatch_size,
               operators)  # fmt: skip
        if key not in self._work:
            members = range(len(self.problem.profile.graph.operators)) if operators is None else operators
            try:
                models = self.models(family.microbatch_size)
                self._work[key] = min(model.least_work_ns(members, *self._spread(family)) for model in models)
            except PenstockError as error:
                self._work[key], self.refused = None, str(error)
        return self._work[key]

    def accumulation_ns(self, family: Family) -> int:
        """Return what adding up all gradients takes of one micro-batch at least; 0 where it could be divided."""
        config, problem = family.config, self.problem
        divided = config.tensor * config.context * config.expert > 1
        as_profiled = problem.training.precision in ("", problem.profiled_precision)
        if divided or not as_profiled or self.rounds(family) == 1:
            return 0
        if family.microbatch_size not in self._accumulation:
            models = self.models(family.microbatch_size)
            found = (sum(map(model.measured.accumulation.at_least, self._trained)) for model in models)
            self._accumulation[family.microbatch_size] = min(found)
        return self._accumulation[family.microbatch_size]

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
            model, ranks = self.models(family.microbatch_size)[0], tuple(range(family.devices_a_place))
            self._states[config] = model.states_bytes(config, ranks)
        return self._states[config]

    def kept_bytes(self, family: Family) -> int:
        """Return what the whole model keeps of one micro-batch on one place where nothing is run again.

        Stages hold at least as much together; 0 where operators do not divide so.
        """
        config = replace(family.config, data=1, zero=0, recompute="none", offload="none")
        if (config, family.microbatch_size) not in self._kept:
            model, ranks = self.models(family.microbatch_size)[0], tuple(range(config.tensor * config.context))
            try:
                kept = model.stage(range(len(self.problem.profile.graph.operators)), config, ranks).activation_bytes
            except PenstockError:
                kept = 0
            self._kept[config, family.microbatch_size] = least(kept)
        return self._kept[config, family.microbatch_size]

    def closing_ns(self, family: Family) -> int:
        """Return what the whole model on one place takes after its last backward: sums of gradients, the optimizer.

        0 where one place cannot have it.
        """
        model, config = self.models(family.microbatch_size)[0], replace(family.config, recompute="none")
        operators, ranks = range(len(self.problem.profile.graph.operators)), tuple(range(family.devices_a_place))
        try:
            cost = model.stage(operators, config, ranks)
        except PenstockError:
            return 0
        return cost.reduce_ns + cost.optimizer_ns

    def least_update_ns(self, family: Family, num_places: int) -> int:
        """Return what the optimizer's steps on so many places, which share the model, take together at least."""
        config = family.config
        key = config.data, config.tensor, config.context, config.expert, config.zero, config.offload, num_places
        if key not in self._updates:
            ranks, models = tuple(range(family.devices_a_place)), self.models(family.microbatch_size)
            self._updates[key] = min(model.least_update_ns(config, ranks, num_places) for model in models)
        return self._updates[key]

    def _spread(self, family: Family) -> tuple[StageConfig, tuple[int, ...]]:
        """Return what of a configuration decides the times that add up, on the ranks of the first place."""
        config = replace(family.config, zero=0, offload="none", recompute="none")
        return config, tuple(range(family.devices_a_place))

    def models(self, microbatch_size: int) -> list[StrategyModel]:
        """Return the price of stages on each type of device among those planned for."""
        machines = self.problem.machines
        known = {device.name: device for device in machines.devices}
        names = dict.fromkeys(self.problem.device_names)
        return [self.problem.stage_model(known[name], microbatch_size) for name in names]

    def most_places(self, family: Family) -> int:
        """Return the most places that a pipeline of this family may have."""
        problem = self.problem
        most = problem.num_devices // family.devices_a_place
        if problem.space.stages is not None:
            most = min(most, problem.space.stages)
        return most if problem.max_stages is None else min(most, max(1, problem.max_stages // family.chunks))

    def even_ns(self, family: Family, num_places: int | None = None) -> int | None:
        """Return a bound on the step of every candidate: all its work, evenly over so many places, or the most.

        Adding up gradients and the optimizer's steps are work: a rank steps after its last backward.

        None where operators do not divide as the family has it.
        """
        work = self.least_work_ns(family)
        if work is None:
            return None
        places = num_places or self.most_places(family)
        whole = self.rounds(family) * (work + self.accumulation_ns(family)) + self.least_update_ns(family, places)
        return int(whole / (places * max(self.problem.speeds)))

    def kind(self, family: Family) -> tuple[bool, bool]:
        """Order kinds of families: offload is looked at last, pipelines that save memory late."""
        config, pipelined = family.config, self.most_places(family) > 1
        return config.offload != "none", pipelined and config.recompute != "none"

    def _estimate_ns(self, family: Family) -> tuple[float, int]:
        """Return what even stages in a line would take that divide all work evenly, filling and draining them too.

        A guess at where to look first: fewer places before more.
        """
        places = self.most_places(family)
        num = self.rounds(family) * family.chunks
        work = self.least_work_ns(Family(StageConfig(), family.microbatch_size)) or 0
        divided = work / (family.config.tensor * family.config.context)
        return (num + places - 1) * divided / (places * family.chunks), places

    def rounds(self, family: Family) -> int:
        """Return how many micro-batches one replica works on."""
        return self.problem.global_batch // (family.microbatch_size * family.config.data)


def _size(config: StageConfig) -> int:
    return config.data * config.tensor * config.context


def _is_sensible(config: StageConfig) -> bool:
    """Whether choices go together: parameters on the host are gathered by ZeRO-3."""
    return config.offload != "parameters" or config.zero == 3
