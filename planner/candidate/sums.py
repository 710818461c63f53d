"""Sums of gradients over ranks: a stage's replicas, and stages that hold the same parameters.

The executor makes one sum of each set of parameters over all ranks of all stages that hold them, after the last
backward. Other trainers sum a stage's replicas (during its last backward), then what is tied between places, as
Megatron-LM does with embeddings. Leaves out when a sum may begin: that is the schedule's.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

from costmodel.machines.collectives import all_reduce_ns
from costmodel.stages.costs import StageCost
from costmodel.stages.strategies.division import Degrees, parameter_parts
from planner.candidate.candidate import StagePlacement
from planner.graph.atoms import Atoms, Partition
from planner.question.problem import Problem

Owners = tuple[int, ...]
"""Stages that hold the same parameters, rising."""


class Sums:
    """Prices the sums of a partition's stages."""

    def __init__(self, problem: Problem, atoms: Atoms) -> None:
        self.problem, self.atoms = problem, atoms

    def of(
        self, partition: Partition, places: Sequence[StagePlacement], stages: Sequence[StageCost]
    ) -> list[tuple[bool, int]]:
        """Return whether each stage sums gradients at all, and how long it takes."""
        tied = self._tied(partition, places)
        found = [
            (place.config.data * place.config.context > 1, stage.reduce_ns)
            for place, stage in zip(places, stages, strict=True)
        ]
        together = self.problem.training.whole_stages
        for owners, size in tied.items():
            ranks = self._ranks(owners, places, together)
            if len(ranks) > 1:
                more = all_reduce_ns(self.problem.machines, ranks, size)
                for stage in owners:
                    before = self._alone(places[stage], size) if together else 0
                    found[stage] = (True, found[stage][1] + more - before)
        return [
            (flag and stage.backward, ns if flag and stage.backward else 0)
            for (flag, ns), stage in zip(found, stages, strict=True)
        ]

    def shares_divided(self, partition: Partition, places: Sequence[StagePlacement]) -> bool:
        """Whether a stage whose ranks divide parameters shares one with another stage."""
        divides = [place.config.divides for place in places]
        return any(divides) and any(divides[stage] for owners in self.owners(partition).values() for stage in owners)

    def owners(self, partition: Partition) -> dict[str, Owners]:
        """Return the stages of each trainable parameter that several have."""
        found = {
            name: tuple(sorted({partition[self.atoms.atom_of[position]] for position in readers}))
            for name, readers in self._shared.items()
        }
        return {name: stages for name, stages in found.items() if len(stages) > 1}

    def _alone(self, place: StagePlacement, size_bytes: int) -> int:
        """Return by how much a replicas' sum shrinks without parameters that are summed elsewhere."""
        if place.config.zero > 1 or len(place.blocks) == 1:
            return 0
        ranks = tuple(block[0] for block in place.blocks)
        return all_reduce_ns(self.problem.machines, ranks, size_bytes)

    def _ranks(self, owners: Owners, places: Sequence[StagePlacement], together: bool) -> tuple[int, ...]:
        held = [[block[0] for block in places[stage].blocks] for stage in owners]
        return tuple(sorted({rank for row in held for rank in (row if together else row[:1])}))

    def _tied(self, partition: Partition, places: Sequence[StagePlacement]) -> Mapping[Owners, int]:
        """Return what one rank holds of the trainable parameters of each set of stages, where there are several."""
        graph, training = self.atoms.graph, self.problem.training
        found: dict[Owners, int] = {}
        for name, owners in self.owners(partition).items():
            parameter = graph.parameter_index[name]
            degrees = Degrees.of(places[owners[0]].config, training.sequence_parallel)
            width = training.width(0)
            size = width * prod(parameter.shape) if width else parameter.size_bytes
            part = size // parameter_parts(parameter, graph.operators[self._shared[name][0]], degrees)
            found[owners] = found.get(owners, 0) + part
        return found

    @cached_property
    def _shared(self) -> dict[str, list[int]]:
        """Operators that read each trainable parameter which several atoms read."""
        graph = self.atoms.graph
        readers: dict[str, list[int]] = {}
        for position, operator in enumerate(graph.operators):
            for name in operator.parameters:
                readers.setdefault(name, []).append(position)
        return {
            name: row
            for name, row in readers.items()
            if graph.parameter_index[name].trainable and len({self.atoms.atom_of[i] for i in row}) > 1
        }
