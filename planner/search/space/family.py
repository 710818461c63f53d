"""Families: candidates alike in everything but cut, number of places and schedule; and all of them that a space holds.

A family fixes how each stage is configured, the micro-batch size on one replica, and how many stages a place holds.
Leaves out stages that are configured differently (`planner.search.proposers.replicas_by_stage`, pins), and what
families take (`Families`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product

from costmodel.stages.config import OFFLOAD, RECOMPUTE, StageConfig
from costmodel.stages.strategies.blocks import block_names
from planner.candidate.order import WITHIN_LIMIT
from planner.plan.rank_order import RankOrder, first_ranks
from planner.question.problem import AUTO, ONE_A_DEVICE, Problem
from planner.question.targets import config_not_run
from planner.search.space.degrees import DegreeSpace
from planner.search.space.device_permutations import Arrangement, arrangements, device_permutations
from simulator.schedules import SCHEDULES

FEW_CHUNKS = (1, 2, 4)
"""Stages a place that are always tried where their number is free."""
MOST_CHUNKS = 20
"""More stages a place than any published layout has."""
SPARE_LAYERS = 2
"""Layers that the embedding and the loss may represent where stages are to have equally many."""


@dataclass(frozen=True, slots=True)
class Family:
    """What all candidates of a family have in common.

    `arrangement` is an index into `FamilySpace.arrangements`; `split` says whether backwards are split where schedules
    are open (`planner.search.proposers.split_orders`).
    """

    config: StageConfig
    microbatch_size: int
    chunks: int = 1
    arrangement: int = 0
    split: bool = False

    @property
    def devices_per_stage(self) -> int:
        """Devices that one pipeline position has."""
        return self.config.num_ranks


@dataclass(frozen=True, slots=True)
class FamilyGroup:
    """Families that divide operators and batch alike, of one stage a place or of several.

    Attributes
    ----------
    configs : tuple of StageConfig
    microbatch_size : int
    chunks : tuple of int
    num_device_permutations : int
    split : bool
        As of each family.
    """

    configs: tuple[StageConfig, ...]
    microbatch_size: int
    chunks: tuple[int, ...]
    num_device_permutations: int
    split: bool = False

    def __len__(self) -> int:
        return len(self.configs) * len(self.chunks) * self.num_device_permutations

    @property
    def num_ranks(self) -> int:
        """Ranks of a place."""
        return self.configs[0].num_ranks

    def __iter__(self) -> Iterator[Family]:
        for config, chunks, permutation in product(self.configs, self.chunks, range(self.num_device_permutations)):
            yield Family(config, self.microbatch_size, chunks, permutation, self.split)


class FamilySpace(DegreeSpace):
    """All families that the devices, the target and the fixed choices admit.

    Attributes
    ----------
    not_run : str
        Why the target runs no family.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.not_run = ""
        self._chunks: dict[int, tuple[int, ...]] = {}
        self._run: dict[StageConfig, tuple[StageConfig, ...]] = {}

    @cached_property
    def all(self) -> tuple[Family, ...]:
        """Every family that the devices, the target and the fixed choices admit."""
        return tuple(self.every())

    def every(self) -> Iterator[Family]:
        """Yield every family, those that divide operators and batch alike together."""
        return chain.from_iterable(self.groups())

    def groups(self, wanted: Callable[[StageConfig], bool] | None = None) -> Iterator["FamilyGroup"]:
        """Yield all families by how they divide operators and batch, or those of the degrees that are wanted."""
        for config in filter(wanted, self.degrees):
            choices = self._run_with(config)
            for size in self.problem.microbatch_sizes_of(config.data) if choices else ():
                numbers = self.numbers_of_chunks(config)
                for chunks in filter(None, (tuple(v for v in numbers if v == 1), tuple(v for v in numbers if v > 1))):
                    yield FamilyGroup(choices, size, chunks, len(self.device_permutations))

    def holds(self, family: Family) -> bool:
        """Whether the space has such a family."""
        config = family.config
        degrees = config.degrees
        return (
            degrees in self._known_degrees
            and config in self._run_with(degrees)
            and family.microbatch_size in self.problem.microbatch_sizes_of(config.data)
            and family.chunks in self.numbers_of_chunks(degrees)
            and family.arrangement < len(self.arrangements)
        )

    @cached_property
    def _known_degrees(self) -> frozenset[StageConfig]:
        return frozenset(self.degrees)

    @cached_property
    def number(self) -> int:
        """How many families there are."""
        sizes = self.problem.microbatch_sizes_of
        return len(self.device_permutations) * sum(
            len(self._run_with(config)) * len(sizes(config.data)) * len(self.numbers_of_chunks(config))
            for config in self.degrees
        )

    def configs_on(self, config: StageConfig) -> Iterator[StageConfig]:
        """Yield all configurations on as many ranks: of the same degrees, and where devices are alike of others."""
        known = self.degrees if len(self.type_names) == 1 else ()
        alike = (each for each in known if each.num_ranks == config.num_ranks)
        yield from chain.from_iterable(map(self._run_with, dict.fromkeys((config.degrees, *alike))))

    def _run_with(self, config: StageConfig) -> tuple[StageConfig, ...]:
        """Return what ZeRO, recompute and offload make of degrees, as far as the target runs it."""
        if config not in self._run:
            self._run[config] = tuple(filter(self._is_run, self._chosen_with(config)))
        return self._run[config]

    def _chosen_with(self, config: StageConfig) -> Iterator[StageConfig]:
        several = config.data * config.context > 1
        for choice in self.choices:
            chosen = replace(config, zero=choice.zero, recompute=choice.recompute, offload=choice.offload)
            if choice.zero == 0:
                yield chosen
            elif several:
                yield from (replace(chosen, shard_group=group) for group in self.shard_groups(config))

    @cached_property
    def single_replicas(self) -> tuple[Family, ...]:
        """One replica of each way to run stages whose replicas may differ in number (`replicas_by_stage.py`)."""
        space = self.problem.space
        tensor, zero = space.tensor or 1, space.zero or 0
        configs = (
            StageConfig(1, tensor, sequence, zero=zero, offload=offload)
            for sequence in self._sequences(tensor)
            for offload in self._values("offload", OFFLOAD)
        )
        return tuple(
            Family(config, size) for config in configs if _is_sensible(config) for size in self.problem.microbatch_sizes
        )

    @cached_property
    def device_permutations(self) -> tuple[tuple[int, ...], ...]:
        """Permutations of the ranks, in which stages may take them; the identity alone where pins place stages."""
        if self.problem.pins and self.problem.pins.stages:
            return (tuple(range(self.problem.num_devices)),)
        return device_permutations(self._kinds)

    @cached_property
    def arrangements(self) -> tuple[Arrangement, ...]:
        """How places may take the ranks: first in each permutation, as any family may, then in other rank orders.

        Families have those only where they are estimated to gain (`FamilyTable`), and what bounds them in the usual
        order bounds them there, whose replicas are farther apart.
        """
        return arrangements(self.problem, self.device_permutations)

    @property
    def rank_orders(self) -> list[RankOrder]:
        """The rank order of each arrangement."""
        return [arrangement.rank_order for arrangement in self.arrangements]

    def stage_ranks(self, family: Family) -> tuple[int, ...]:
        """Return the ranks of a stage by itself, which in no place of a pipeline are closer to each other."""
        return first_ranks(family.config, 1, self.problem.space.ranks)

    @cached_property
    def _kinds(self) -> list[tuple[int, float]]:
        """Type, by its number, and speed of each rank."""
        types = map(self.type_names.index, self.problem.device_names)
        return list(zip(types, self.problem.speeds, strict=True))

    def numbers_of_chunks(self, config: StageConfig) -> tuple[int, ...]:
        """Return the numbers of chunks that any number of places may have."""
        most = self.max_pipeline_stages(Family(config, 1))
        if most not in self._chunks:
            found = (v for places in {most, 2} if places <= most for v in self.chunks_of(places))
            self._chunks[most] = tuple(dict.fromkeys(found)) or (1,)
        return self._chunks[most]

    def chunks_of(self, places: int) -> tuple[int, ...]:
        """Return how many stages a place may hold: few, and as many as divide the layers, or all but one or two."""
        problem, fixed = self.problem, self.problem.space.chunks
        if fixed:
            return (fixed,)
        looped = problem.schedule in (AUTO, WITHIN_LIMIT) or SCHEDULES[problem.schedule].placement == "loop"
        if not looped or places == 1 or problem.target == ONE_A_DEVICE or problem.pins is not None:
            return (1,)
        most = problem.max_stages or places * MOST_CHUNKS
        layers = self.num_layers
        even = (
            v
            for v in range(2, MOST_CHUNKS + 1)
            if any((layers + i) % (places * v) == 0 for i in range(SPARE_LAYERS + 1))
        )
        known = sorted({*FEW_CHUNKS, *even})
        return tuple(v for v in known if v == 1 or (v * places <= most and v * places <= max(layers + 1, 2 * places)))

    @cached_property
    def num_layers(self) -> int:
        """Blocks of the model that follow each other."""
        return len({name for name in block_names(self.problem.profile.graph.operators) if name})

    @cached_property
    def choices(self) -> tuple[StageConfig, ...]:
        """ZeRO, recompute and offload as they go together."""
        space = self.problem.space
        zeros = [zero for zero in range(4) if space.allows("zero", zero) and (zero or not space.shard_group)]
        rows = product(zeros, self._values("recompute", RECOMPUTE), self._values("offload", OFFLOAD))
        found = (StageConfig(zero=zero, recompute=recompute, offload=offload) for zero, recompute, offload in rows)
        return tuple(filter(_is_sensible, found))

    @cached_property
    def host_devices(self) -> int:
        """Devices of the largest host."""
        return max(host.devices for host in self.problem.machines.hosts)

    @cached_property
    def unlike(self) -> bool:
        """Whether ranks differ in type or speed."""
        return len(set(self._kinds)) > 1

    def _values(self, name: str, values: tuple[str, ...]) -> tuple[str, ...]:
        if name == "offload" and not any(host.memory_bytes for host in self.problem.machines.hosts):
            values = (getattr(self.problem.space, name) or "none",)
        return tuple(value for value in values if self.problem.space.allows(name, value))

    def _is_run(self, config: StageConfig) -> bool:
        """Whether the target that was asked for runs such stages; a default target still shows what others run."""
        target, problem = self.problem.target, self.problem
        refusals = [config_not_run(target, problem, config, pipelined) for pipelined in (True, False)]
        if all(refusals):
            self.not_run = self.not_run or refusals[0]  # of the plainest configuration, which has what was asked for
        return not all(refusals)

    def max_pipeline_stages(self, family: Family) -> int:
        """Return the most places that a pipeline of this family may have."""
        problem = self.problem
        most = problem.num_devices // family.devices_per_stage
        if problem.space.stages is not None:
            most = min(most, problem.space.stages)
        return most if problem.max_stages is None else min(most, max(1, problem.max_stages // family.chunks))

    def microbatches_per_replica(self, family: Family) -> int:
        """Return how many micro-batches one replica works on."""
        return self.problem.global_batch // (family.microbatch_size * family.config.data)


def _is_sensible(config: StageConfig) -> bool:
    """Whether choices go together: parameters on the host are gathered by ZeRO-3."""
    return config.offload != "parameters" or config.zero == 3
