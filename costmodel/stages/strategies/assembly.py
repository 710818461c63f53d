"""Puts together what every operator costs under one configuration.

Leaves out what the parts are: times (`efficiency`), traffic, kept bytes and weights have modules of their own.
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
from costmodel.stages.strategies.blocks import block_names, block_spans
from costmodel.stages.strategies.division import Degrees, ceil, feeds_experts, is_expert, output_parts
from costmodel.stages.strategies.efficiency import Efficiency
from costmodel.stages.strategies.groups import StageGroups
from costmodel.stages.strategies.host_dispatch import HostDispatch
from costmodel.stages.strategies.operator_equivalence import OperatorEquivalence
from costmodel.stages.strategies.saved_activations import (
    runs_of,
    saved_activations,
    saved_items,
    tensor_bytes_of,
    training_scale,
)
from costmodel.stages.strategies.shared_sums import Item, SharedSums
from costmodel.stages.strategies.states import Weights, parameter_bytes, weights_of
from costmodel.stages.strategies.traffic import Reads, Traffic
from costmodel.stages.strategies.training import TrainingJob
from costmodel.stages.strategies.vectors import TimeVectors, Vectors
from costmodel.stages.strategies.workspace_memory import WorkspaceMemory


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


class VectorCache:
    """Vectors by configuration; what several configurations have in common is made once."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._names = build.block_names
        self._blocks = block_spans(self._names)
        self._vectors: dict[object, Vectors] = {}
        self._times: dict[object, tuple[TimeVectors, list[Item]]] = {}
        self._items: dict[Degrees, list[Item]] = {}
        self._weights: dict[tuple[int, int, int], Weights] = {}
        self._again: dict[tuple[Degrees, str | tuple[str, ...]], int] = {}
        self._running: dict[str | tuple[str, ...], list[bool]] = {}

    def of(self, degrees: Degrees, recompute: str | tuple[str, ...], groups: StageGroups) -> Vectors:
        """Return what each operator costs.

        Operators that cannot be divided so are taken whole: `why_whole` tells, and stages that hold them are refused.
        """
        inside = (degrees, groups.inside)
        if (inside, recompute) not in self._vectors:
            self._vectors[inside, recompute] = self._make(degrees, recompute, groups)
        return self._vectors[inside, recompute]

    def times(self, degrees: Degrees, groups: StageGroups) -> TimeVectors:
        """Return the times of operators alone."""
        return self._known_times(degrees, groups)[0]

    def kept_bytes(self, degrees: Degrees) -> int:
        """Return what all operators keep together of one micro-batch where nothing runs again."""
        largest: dict[object, int] = {}
        for _, key, size in self._kept_items(degrees):
            largest[key] = max(size, largest.get(key, 0))
        return sum(largest.values())

    def again_ns(self, degrees: Degrees, recompute: str | tuple[str, ...]) -> int:
        """Return what the forwards of all operators that run again take by themselves."""
        if (degrees, recompute) not in self._again:
            times = self._build.efficiency.times
            again = (times(i, degrees)[0] for i, runs in enumerate(self._runs(recompute)) if runs)
            self._again[degrees, recompute] = sum(again)
        return self._again[degrees, recompute]

    def forwards_again(self, degrees: Degrees, recompute: str | tuple[str, ...], *, whole: bool) -> list[int]:
        """Return what the own forward of each operator takes that may run again, with a `whole` stage all; else 0."""
        times = self._build.efficiency.times
        return [times(i, degrees)[0] if whole or runs else 0 for i, runs in enumerate(self._runs(recompute))]

    def savings(self, degrees: Degrees, recompute: str | tuple[str, ...]) -> list[tuple[int, int]]:
        """Return what the own forward of each operator that may run again takes, and the bytes that it keeps.

        Most bytes for their time first.
        """
        kept: dict[int, int] = {}
        runs = self._runs(recompute)
        for position, _, size in self._kept_items(degrees):
            if runs[position]:
                kept[position] = kept.get(position, 0) + size
        rows = [(self._build.efficiency.times(i, degrees)[0], size) for i, size in kept.items() if size]
        return sorted(rows, key=lambda row: row[0] / row[1])

    def _kept_items(self, degrees: Degrees) -> list[Item]:
        build = self._build
        if degrees not in self._items:
            self._items[degrees] = saved_items(build.model, build.training, degrees, build.tensor_bytes(degrees))
        return self._items[degrees]

    def weights(self, degrees: Degrees) -> Weights:
        """Return what operators' parameters take on one rank."""
        shards = (degrees.tensor, degrees.expert, degrees.expert_tensor)
        if shards not in self._weights:
            graph = self._build.model.profile.graph
            self._weights[shards] = weights_of(graph, self._build.training, degrees, self._build.accumulation)
        return self._weights[shards]

    def _known_times(self, degrees: Degrees, groups: StageGroups) -> tuple[TimeVectors, list[Item]]:
        inside = (degrees, groups.inside)
        if inside not in self._times:
            self._times[inside] = _times(self._build, degrees, groups)
        return self._times[inside]

    def _make(self, degrees: Degrees, recompute: str | tuple[str, ...], groups: StageGroups) -> Vectors:
        build, graph = self._build, self._build.model.profile.graph
        times, forward = self._known_times(degrees, groups)
        runs = self._runs(recompute)
        again = [item for item in forward if runs[item[0]]]
        width, profiled = training_scale(build.model, build.training)
        working = [
            ceil(size * width // profiled, output_parts(graph, i, degrees))
            for i, size in enumerate(build.model.working_bytes)
        ]
        return Vectors(
            times,
            SharedSums(again, len(graph.operators)),
            times.host_dispatch.again(runs) if times.host_dispatch else SharedSums((), len(graph.operators)),
            saved_activations(
                graph,
                self._kept_items(degrees),
                recompute,
                build.tensor_bytes(degrees),
                build.block_names,
                self._held if build.training.selective == "operators" else None,
                build.training.fused,
            ),
            self.weights(degrees),
            self._names,
            self._blocks,
            self._made_together(recompute),
            WorkspaceMemory(working, self._kept_items(degrees)) if working else None,
        )

    def _made_together(self, recompute: str | tuple[str, ...]) -> tuple[range, ...]:
        """Return the positions of what runs again together: a block, an attention, a run of those that are named."""
        if recompute == "full" or (recompute == "selective" and self._build.training.selective == "operators"):
            return self._blocks
        if isinstance(recompute, tuple):
            return block_spans(runs_of(self._build.model.profile.graph, frozenset(recompute)))
        return tuple(range(i, i + 1) for i, runs in enumerate(self._runs(recompute)) if runs)

    @cached_property
    def _held(self) -> frozenset[int]:
        """Operators whose outputs selective recompute by operator keeps: attention, every second product of a block."""
        graph, held = self._build.model.profile.graph, set[int]()
        kinds = [operator.work.kind if operator.work else "" for operator in graph.operators]
        for span in self._blocks:
            held |= {i for i in span if kinds[i] == "attention"}
            held |= set([i for i in span if kinds[i] == "matmul"][::2])
        return frozenset(held)

    def _runs(self, recompute: str | tuple[str, ...]) -> list[bool]:
        """Return whether each operator runs again."""
        if recompute not in self._running:
            names = frozenset(recompute) if isinstance(recompute, tuple) else recompute
            self._running[recompute] = [self._runs_again(names, i) for i in range(len(self._names))]
        return self._running[recompute]

    def _runs_again(self, recompute: str | frozenset[str], position: int) -> bool:
        """Whether an operator runs again: all of a block, or what is not held of it; attention; or those named."""
        if isinstance(recompute, frozenset):
            return self._build.model.profile.graph.operators[position].name in recompute
        if recompute == "selective" and self._build.training.selective == "operators":
            return bool(self._names[position]) and position not in self._held
        if recompute == "selective":
            work = self._build.model.profile.graph.operators[position].work
            return work is not None and work.kind == "attention"
        return recompute == "full" and bool(self._names[position])


def _times(build: Build, degrees: Degrees, groups: StageGroups) -> tuple[TimeVectors, list[Item]]:
    """Return the times of operators, and all that their forwards are made of."""
    count = len(build.model.profile.graph.operators)
    times = [build.efficiency.times(i, degrees) for i in range(count)]
    forward, backward, held = build.traffic(degrees, groups).items(dict(enumerate(times)))
    gathered = [0] * count
    for position, _, size_bytes in held:
        gathered[position] = max(gathered[position], size_bytes)
    own: list[Item] = [(i, ("own", i), time[0]) for i, time in enumerate(times)]
    found = TimeVectors(
        SharedSums(forward, count, [time[0] for time in times]),
        SharedSums(backward, count, [time[1] for time in times]),
        SharedSums((), count, [time[2] for time in times]),
        tuple(gathered),
        HostDispatch(build.model.profile.graph, build.training, degrees, forward, backward)
        if build.training.host_ns
        else None,
    )
    return found, own + forward
