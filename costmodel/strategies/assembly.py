"""Puts together what every operator costs under one configuration.

Leaves out what the parts are: times (`efficiency`), traffic, kept bytes and weights have modules of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.cluster import Cluster
from costmodel.cost_model import CostModel
from costmodel.strategies.blocks import block_names, block_spans
from costmodel.strategies.division import Degrees, check_divides
from costmodel.strategies.efficiency import Efficiency
from costmodel.strategies.groups import StageGroups
from costmodel.strategies.kept import kept_bytes, tensor_bytes_of, training_scale
from costmodel.strategies.states import weights_of
from costmodel.strategies.traffic import Traffic
from costmodel.strategies.training import DTYPES, Training
from costmodel.strategies.unions import Item, UnionSums
from costmodel.strategies.vectors import Vectors


@dataclass(frozen=True)
class Build:
    """What all configurations of one profile, cluster and micro-batch size share."""

    model: CostModel
    cluster: Cluster
    training: Training
    efficiency: Efficiency

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each tensor, whole, at the micro-batch size and precision."""
        width, profiled = training_scale(self.model, self.training)
        return tuple(self.model.tensor_bytes(t) * width // profiled for t in self.model.profile.graph.tensors)

    @cached_property
    def trainable_bytes(self) -> int:
        """Bytes of all trainable parameters as this training keeps them."""
        weights = weights_of(self.model.profile.graph, self.training, Degrees())
        everything = range(len(self.model.profile.graph.operators))
        return weights.trainable.over(everything) + weights.trainable_experts.over(everything)

    @property
    def profiled_precision(self) -> str:
        """Precision of the profile."""
        return DTYPES.get(self.model.profile.dtype.removeprefix("torch."), "fp32")

    def tensor_bytes(self, degrees: Degrees) -> tuple[int, ...]:
        """Bytes of each tensor on one rank."""
        return tensor_bytes_of(self.model.profile.graph, degrees, self.sizes)

    @cached_property
    def _losses(self) -> tuple[tuple[int, int], ...]:
        """Position of each loss with each tensor that it reads and sends a gradient to."""
        graph = self.model.profile.graph
        return tuple(
            (graph.index[consumer], index)
            for index, tensor in enumerate(graph.tensors)
            for consumer in tensor.consumers
            if tensor.gradient and graph.operators[graph.index[consumer]].kind == "loss"
        )

    def loss_gradient(self, operators: Sequence[int], tensor_bytes: Sequence[int]) -> int:
        """Bytes of the largest gradient that a loss among the operators makes."""
        return max((tensor_bytes[index] for position, index in self._losses if position in operators), default=0)


def build_vectors(build: Build, degrees: Degrees, recompute: str, groups: StageGroups) -> Vectors:
    """Return what each operator costs.

    Raises
    ------
    UsageError
        On an operator that these degrees do not divide.
    """
    graph = build.model.profile.graph
    for operator in graph.operators:
        check_divides(operator, degrees)
    count = len(graph.operators)
    times = [build.efficiency.times(i, degrees) for i in range(count)]
    width = training_scale(build.model, build.training)[0]
    traffic = Traffic(
        graph,
        build.cluster,
        degrees,
        groups,
        build.sizes,
        width,
        build.model.microbatch_size,
        build.training.overlap,
    )
    forward, backward, gathered = traffic.items(times)
    columns: list[list[Item]] = [[(i, ("own", i), time[part]) for i, time in enumerate(times)] for part in range(3)]
    names = block_names(graph.operators)
    again = [item for item in columns[0] + forward if _recomputed(build, recompute, item[0], names)]
    blocks = block_spans(names)
    return Vectors(
        UnionSums(columns[0] + forward, count),
        UnionSums(columns[1] + backward, count),
        UnionSums(columns[2], count),
        UnionSums(again, count),
        tuple(gathered),
        kept_bytes(build.model, build.training, degrees, recompute, build.sizes),
        weights_of(graph, build.training, degrees),
        blocks,
        blocks if recompute == "full" else tuple(range(i, i + 1) for i in range(count)) * (recompute == "selective"),
    )


def _recomputed(build: Build, recompute: str, position: int, names: Sequence[str]) -> bool:
    """Whether an operator's forward runs again: all of a block, or attention alone."""
    work = build.model.profile.graph.operators[position].work
    if recompute == "selective":
        return work is not None and work.kind == "attention"
    return recompute == "full" and bool(names[position])
