"""What the prices of all configurations of one profile, cluster and micro-batch size share.

Leaves out what one configuration makes of it (`assembly`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate

from costmodel.machines.cluster import Cluster
from costmodel.model.accumulation import Accumulation, accumulation_of
from costmodel.model.profile import DTYPES
from costmodel.roofline import OPTIMIZERS
from costmodel.roofline.updates import orthogonal_flop
from costmodel.stages.measured_operators import MeasuredOperators
from costmodel.stages.strategies.blocks import block_names
from costmodel.stages.strategies.division import Degrees, feeds_experts, is_expert
from costmodel.stages.strategies.efficiency import Efficiency
from costmodel.stages.strategies.groups import StageGroups
from costmodel.stages.strategies.operator_equivalence import OperatorEquivalence
from costmodel.stages.strategies.saved_activations import (
    tensor_bytes_of,
    training_scale,
)
from costmodel.stages.strategies.states import parameter_bytes
from costmodel.stages.strategies.traffic import Reads, Traffic
from costmodel.stages.strategies.training import TrainingJob


@dataclass(frozen=True)
class Build:
    """What all configurations of one profile, cluster and micro-batch size share."""

    model: MeasuredOperators
    cluster: Cluster
    training: TrainingJob
    efficiency: Efficiency

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each tensor, whole, at the micro-batch size and precision."""
        width, profiled = training_scale(self.model, self.training)
        return tuple(self.model.tensor_bytes(t) * width // profiled for t in self.model.profile.graph.tensors)

    @cached_property
    def trainable_bytes(self) -> int:
        """Bytes of all trainable parameters as this training keeps them."""
        graph = self.model.profile.graph
        read = {name for operator in graph.operators for name in operator.parameters}
        trained = (p for p in graph.parameters if p.trainable and p.name in read)
        return sum(parameter_bytes(parameter, self.training) for parameter in trained)

    @cached_property
    def accumulation(self) -> Accumulation:
        """What adding up gradients takes of each parameter."""
        return accumulation_of(self.model.profile, partial(parameter_bytes, training=self.training))

    @cached_property
    def equivalence(self) -> OperatorEquivalence:
        """Which operators, and which tensors, are alike in all that their prices depend on."""
        return OperatorEquivalence(self.model.profile.graph, self.reads, self.sizes, self.efficiency.alike)

    def traffic(self, degrees: Degrees, groups: StageGroups) -> Traffic:
        """Return what ranks send each other under one configuration."""
        width, size = training_scale(self.model, self.training)[0], self.model.microbatch_size
        graph, overlap, alone = self.model.profile.graph, self.training.hides("tensor"), self.training.whole_stages
        hidden = self._hidden_ns(degrees) if self.training.overlap_experts else 0
        return Traffic(
            graph, self.reads, self.cluster, degrees, groups, self.sizes, width, size, overlap, alone, hidden,
            self.training.experts_together, self.training.dispatcher,
        )  # fmt: skip

    def _hidden_ns(self, degrees: Degrees) -> int:
        """Return a quarter of a layer's work, which runs during each of its four all-to-alls of another micro-batch."""
        graph = self.model.profile.graph
        layers = sum(is_expert(o) and not feeds_experts(graph, i) for i, o in enumerate(graph.operators))
        return sum(self.bare_works_ns(degrees)) // (4 * layers) if layers else 0

    def bare_works_ns(self, degrees: Degrees) -> tuple[int, ...]:
        """Return what all operators of each kind take by themselves, F, and I and W of those that have them."""
        graph, found = self.model.profile.graph, list[int]()
        for i, count in self.equivalence.operators.items():
            forward, *backward = self.efficiency.times(i, degrees)
            found.append(count * (forward + sum(backward) * graph.operators[i].trainable))
        return tuple(found)

    def whole_work_ns(self, degrees: Degrees, groups: StageGroups) -> tuple[int, int]:
        """Return what all operators take together of F, and of I and W: one of each kind is priced."""
        inside = (degrees, groups.inside)
        if inside not in self._works:
            self._works[inside] = self._whole_work_ns(degrees, groups)
        return self._works[inside]

    @cached_property
    def _works(self) -> dict[object, tuple[int, int]]:
        return {}

    def _whole_work_ns(self, degrees: Degrees, groups: StageGroups) -> tuple[int, int]:
        alike, graph = self.equivalence, self.model.profile.graph
        times = {position: self.efficiency.times(position, degrees) for position in alike.looked_at}
        there, back, _ = self.traffic(degrees, groups).items(times)
        trained = {i: count for i, count in alike.operators.items() if graph.operators[i].trainable}
        forward = sum(count * times[i][0] for i, count in alike.operators.items())
        backward = sum(count * sum(times[i][1:]) for i, count in trained.items())
        return forward + alike.sum(there), backward + alike.sum(back)

    @cached_property
    def update_flop(self) -> int:
        """FLOP of one step over all trainable parameters beyond passing over them."""
        if not OPTIMIZERS[self.training.optimizer].orthogonal:
            return 0
        graph = self.model.profile.graph  # matrices outside of blocks, embedding and head, are stepped by another
        inside = {name for each, block in zip(graph.operators, graph.blocks, strict=True) if block
                  for name in each.parameters}  # fmt: skip
        return sum(orthogonal_flop(each.shape) for each in graph.parameters if each.trainable and each.name in inside)

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
        """Precision of the profile's parameters."""
        return DTYPES.get(self.model.profile.dtype.removeprefix("torch."), "fp32")

    def tensor_bytes(self, degrees: Degrees) -> tuple[int, ...]:
        """Bytes of each tensor on one rank."""
        if degrees not in self._tensor_bytes:
            self._tensor_bytes[degrees] = tensor_bytes_of(self.model.profile.graph, degrees, self.sizes)
        return self._tensor_bytes[degrees]

    @cached_property
    def _tensor_bytes(self) -> dict[Degrees, tuple[int, ...]]:
        return {}

    @cached_property
    def block_names(self) -> tuple[str, ...]:
        """Block of each operator."""
        return block_names(self.model.profile.graph.operators)

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

    def crossing(self, tensor_bytes: tuple[int, ...]) -> tuple[int, ...]:
        """Return for each position the bytes of tensors from before it that something from it on reads.

        Logits stay with their loss, which no pipeline parts from them.
        """
        if tensor_bytes not in self._crossing:
            graph = self.model.profile.graph
            change = [0] * (len(graph.operators) + 1)
            logits = {index for _, index in self._losses}
            for index, (tensor, size) in enumerate(zip(graph.tensors, tensor_bytes, strict=True)):
                if tensor.consumers and index not in logits:
                    change[graph.index[tensor.producer] + 1] += size
                    change[max(map(graph.index.__getitem__, tensor.consumers)) + 1] -= size
            self._crossing[tensor_bytes] = tuple(accumulate(change))
        return self._crossing[tensor_bytes]

    @cached_property
    def _crossing(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        return {}

    def loss_gradient(self, operators: Sequence[int], tensor_bytes: Sequence[int]) -> int:
        """Bytes of the largest gradient that a loss among the operators makes."""
        return max((tensor_bytes[index] for position, index in self._losses if position in operators), default=0)
