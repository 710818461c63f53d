"""Puts together what every operator costs under one configuration.

Leaves out what the parts are: times (`efficiency`), traffic, kept bytes and weights have modules of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.cluster import Cluster
from costmodel.cost_model import CostModel
from costmodel.strategies.blocks import block_names, block_spans
from costmodel.strategies.division import Degrees
from costmodel.strategies.efficiency import Efficiency
from costmodel.strategies.groups import StageGroups
from costmodel.strategies.kept import kept_bytes, tensor_bytes_of, training_scale
from costmodel.strategies.states import weights_of
from costmodel.strategies.traffic import Reads, Traffic
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

    def share(self, trainable_bytes: int) -> float:
        """Return a part of the model's trainable bytes."""
        return trainable_bytes / self.trainable_bytes if self.trainable_bytes else 0.0

    @cached_property
    def cuda(self) -> int:
        """1 on GPUs, which need a context and workspaces, else 0."""
        return int(self.cluster.device_of(0).type == "cuda")

    @cached_property
    def reads(self) -> Reads:
        """Tensors that each operator reads and makes."""
        graph = self.model.profile.graph
        read: list[list[int]] = [[] for _ in graph.operators]
        made: list[list[int]] = [[] for _ in graph.operators]
        for index, tensor in enumerate(graph.tensors):
            made[graph.index[tensor.producer]].append(index)
            for consumer in tensor.consumers:
                read[graph.index[consumer]].append(index)
        return Reads(tuple(map(tuple, read)), tuple(map(tuple, made)))

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

    Operators that cannot be divided so are taken whole: `check_divides` refuses the stages that hold them.
    """
    graph = build.model.profile.graph
    count = len(graph.operators)
    times = [build.efficiency.times(i, degrees) for i in range(count)]
    width = training_scale(build.model, build.training)[0]
    traffic = Traffic(
        graph,
        build.reads,
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
