"""The price of a stage under a `StageConfig`: times, memory term by term, communication inside it.

Everything that depends on operators alone is made once a configuration (`Vectors`) and answered for a stage by
differences of prefix sums; the rest is a handful of collectives, remembered. Leaves out what flows between stages,
tied parameters of several stages, and orders.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from costmodel.catalogue import device as catalogue_device
from costmodel.cluster import Cluster
from costmodel.cost_model import CostModel
from costmodel.costs import StageCost
from costmodel.errors import UsageError
from costmodel.graph import Tensor
from costmodel.profile import Profile
from costmodel.roofline import optimizer_step_ns
from costmodel.strategies import host
from costmodel.strategies.assembly import Build, build_vectors
from costmodel.strategies.division import Degrees
from costmodel.strategies.efficiency import Efficiency
from costmodel.strategies.gradients import BUCKET_BYTES, Copies, Overlap
from costmodel.strategies.groups import GroupFinder, StageGroups
from costmodel.strategies.memory import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    CUBLAS_BYTES,
    Amount,
    MemoryTerms,
    with_fragmentation,
)
from costmodel.strategies.states import Amounts, States, both, states_of
from costmodel.strategies.training import Training
from costmodel.strategies.vectors import Vectors
from costmodel.strategy import StageConfig

OVERLAP_SLOWDOWN = 1.19
"""For devices that the catalogue does not know; the source is that of `costmodel.catalogue.overlap_slowdown`."""


class Times(NamedTuple):
    """F, I, W of one action and R, with communication inside the stage, ns."""

    forward: int
    backward_input: int
    backward_weight: int
    recompute: int


@dataclass(frozen=True, slots=True)
class _Spread:
    """A stage's operators spread over ranks: what all its prices follow from."""

    operators: Sequence[int]
    config: StageConfig
    rank: int
    groups: StageGroups
    vectors: Vectors

    @property
    def copies(self) -> tuple[Copies, Copies]:
        """Dense weights and experts' with the ranks that hold copies."""
        weights, groups = self.vectors.weights, self.groups
        return (
            Copies(groups.replicas, weights.dense.over(self.operators), weights.trainable.over(self.operators)),
            Copies(
                groups.expert_replicas,
                weights.experts.over(self.operators),
                weights.trainable_experts.over(self.operators),
            ),
        )


class StrategyModel:
    """Prices stages of one profile on one cluster at one micro-batch size.

    Parameters
    ----------
    profile : Profile
        Measured, or made by ``penstock model``.
    cluster : Cluster
    microbatch_size : int
        Samples of one micro-batch on one data-parallel rank.
    training : Training

    Raises
    ------
    UsageError
        When the profile's device is not in the catalogue and another precision than the profile's is asked for.
    """

    def __init__(self, profile: Profile, cluster: Cluster, microbatch_size: int, training: Training) -> None:
        self.profile, self.cluster, self.training = profile, cluster, training
        self.microbatch_size = microbatch_size
        self.measured = CostModel(profile, cluster, microbatch_size, training.optimizer)
        self._groups = GroupFinder(cluster)
        self._build = Build(self.measured, cluster, training, Efficiency(self.measured, training))
        self._vectors: dict[tuple[Degrees, str, StageGroups], Vectors] = {}
        self._terms: dict[object, MemoryTerms] = {}
        self._stages: dict[object, StageCost] = {}

    def stage(
        self,
        operators: Sequence[int],
        config: StageConfig,
        ranks: Sequence[int],
        received: Sequence[Tensor] = (),
        num_microbatches: int = 1,
    ) -> StageCost:
        """Return what one action of a stage costs on each of its ranks.

        Parameters
        ----------
        operators : sequence of int
            Positions in the graph; a `range` is fastest.
        config : StageConfig
        ranks : sequence of int
            data x context x tensor of them, tensor innermost.
        received : sequence of Tensor
            What arrives from other stages and stays until the backward.
        num_microbatches : int
            Of a step; with one, gradients are not added to others.

        Returns
        -------
        StageCost
            ``recompute_ns`` is spent inside B or I; ``static_bytes`` holds all but activations.

        Raises
        ------
        UsageError
            When an operator cannot be divided as asked, or the ranks are not as many as the degrees make.
        NoPlanFits
            When a host cannot hold what is offloaded to it.
        """
        arrived = tuple(tensor.name for tensor in received)
        spread = self._spread(operators, config, ranks, arrived)
        key = (_key(spread), arrived, num_microbatches > 1)
        if key not in self._stages:
            self._stages[key] = self._stage(spread, arrived, num_microbatches)
        return self._stages[key]

    def terms(
        self,
        operators: Sequence[int],
        config: StageConfig,
        ranks: Sequence[int],
        num_microbatches: int,
        in_flight: int,
        received: Sequence[Tensor] = (),
    ) -> MemoryTerms:
        """Return the memory of a stage on one rank, term by term, with `in_flight` micro-batches alive.

        Raises
        ------
        UsageError
            As `stage`.
        """
        arrived = tuple(tensor.name for tensor in received)
        spread = self._spread(operators, config, ranks, arrived)
        return self._memory(spread, arrived, min(in_flight, num_microbatches))

    def tensor_bytes(self, tensor: Tensor, config: StageConfig) -> int:
        """Return what one rank of a stage with this configuration holds, and sends on, of a tensor."""
        degrees = Degrees.of(config, self.training.sequence_parallel)
        return self._build.tensor_bytes(degrees)[self._tensor_index[tensor.name]]

    def times(self, operators: Sequence[int], config: StageConfig, ranks: Sequence[int]) -> Times:
        """Return the times of one action that add up over operators: no ZeRO, no sums over copies, no offload."""
        spread = self._spread(operators, config, ranks)
        return _times(spread.vectors, spread.operators)

    @cached_property
    def _tensor_index(self) -> dict[str, int]:
        return {tensor.name: i for i, tensor in enumerate(self.profile.graph.tensors)}

    def _spread(
        self, operators: Sequence[int], config: StageConfig, ranks: Sequence[int], received: Sequence[str] = ()
    ) -> _Spread:
        members = operators if isinstance(operators, range) else tuple(sorted(operators))
        groups = self._groups.of(ranks, config)
        vectors = self._vectors_of(config, config.recompute, groups)
        if config.recompute == "full":
            # blocks whose inputs are larger than what they keep gain nothing: such a stage keeps what it made
            plain = self._vectors_of(config, "none", groups)
            if self._kept_bytes(plain, members, received) <= self._kept_bytes(vectors, members, received):
                vectors = plain
        return _Spread(members, config, ranks[0], groups, vectors)

    def _vectors_of(self, config: StageConfig, recompute: str, groups: StageGroups) -> Vectors:
        degrees = Degrees.of(config, self.training.sequence_parallel)
        # only the groups that talk inside a stage enter the vectors: copies of any number share them
        inside = replace(groups, replicas=(), expert_replicas=())
        key = (degrees, recompute, inside)
        if key not in self._vectors:
            self._vectors[key] = build_vectors(self._build, degrees, recompute, inside)
        return self._vectors[key]

    def _kept_bytes(self, vectors: Vectors, operators: Sequence[int], received: Sequence[str]) -> int:
        """Return what one micro-batch keeps, with what was received for it."""
        indices = [self._tensor_index[name] for name in received]
        return vectors.kept.kept.over(operators) + vectors.kept.received(indices, self.profile.graph, operators)

    def _stage(self, spread: _Spread, received: tuple[str, ...], num_microbatches: int) -> StageCost:
        operators = spread.operators
        times = _times(spread.vectors, operators)
        trainable = sum(copies.trainable for copies in spread.copies)
        if num_microbatches > 1:
            added = round(self.profile.whole.accumulate_ns * self._share(trainable))
            times = times._replace(backward_weight=times.backward_weight + added)
        memory = self._memory(spread, received, 1)
        if memory.host:
            host.check_room(self.cluster, spread.rank, memory.host)
        trains = any(self.profile.graph.operators[i].trainable for i in operators)
        whole = self._with_copies(spread, times)
        whole = self._with_offload(spread, whole, memory)
        held = memory.activations.point
        late = spread.vectors.kept.late.over(operators) if spread.config.recompute != "full" else held
        reduce_ns, optimizer_ns = self._step(spread, times, memory)
        return StageCost(
            forward_ns=whole.forward,
            backward_input_ns=whole.backward_input,
            backward_weight_ns=whole.backward_weight,
            recompute_ns=whole.recompute if trains else 0,
            activation_bytes=held,
            weight_activation_bytes=min(late, held),
            static_bytes=sum(size for _, size in memory.static()),
            reduce_ns=reduce_ns,
            optimizer_ns=optimizer_ns,
            backward=trains,
            memory_terms=memory.static(),
        )

    def _share(self, trainable_bytes: int) -> float:
        """Return a part of the model's trainable bytes as this training keeps them."""
        return trainable_bytes / self._build.trainable_bytes if self._build.trainable_bytes else 0.0

    @cached_property
    def _overlap(self) -> Overlap:
        name = self.cluster.device_of(0).catalogue
        known = catalogue_device(name).overlap_slowdown if name else OVERLAP_SLOWDOWN
        return Overlap(self.training.overlap, self.training.overlap_slowdown or known)

    def _with_copies(self, spread: _Spread, times: Times) -> Times:
        """Add what ZeRO-2 and ZeRO-3 send with every micro-batch."""
        zero, cluster = spread.config.zero, self.cluster
        if zero < 2 or len(spread.groups.replicas) == 1:
            return times
        parts = spread.vectors.num_blocks(spread.operators)
        scatter = sum(copies.reduce_ns(cluster, zero) for copies in spread.copies)
        gather = sum(copies.gather_ns(cluster) for copies in spread.copies) if zero == 3 else 0
        backward = times.recompute + times.backward_input + times.backward_weight
        # one exchange at a time: the backward's gather and scatter share the links
        back = self._overlap.exposed_ns(gather + scatter, backward, parts)
        return times._replace(
            forward=times.forward + self._overlap.exposed_ns(gather, times.forward, parts),
            backward_weight=times.backward_weight + back,
        )

    def _with_offload(self, spread: _Spread, times: Times, memory: MemoryTerms) -> Times:
        """Add what offloaded parameters and activations send to the host and back with every micro-batch."""
        if spread.config.offload not in ("parameters", "activations"):
            return times
        if spread.config.offload == "activations":
            size = memory.host
        else:
            size = sum(copies.weights // len(copies.ranks) for copies in spread.copies)
        copy = host.transfer_ns(self.cluster, spread.rank, size)
        parts = spread.vectors.num_blocks(spread.operators)
        backward = times.recompute + times.backward_input + times.backward_weight
        return times._replace(
            forward=times.forward + self._overlap.exposed_ns(copy, times.forward, parts),
            backward_input=times.backward_input + self._overlap.exposed_ns(copy, backward, parts),
        )

    def _step(self, spread: _Spread, times: Times, memory: MemoryTerms) -> tuple[int, int]:
        """Return the exposed sum of gradients and the optimizer's step, with what is gathered after it."""
        zero, cluster = spread.config.zero, self.cluster
        reduce_ns = optimizer_ns = 0
        for copies in spread.copies:
            if zero < 2 and copies.trainable:
                buckets = -(-copies.trainable // BUCKET_BYTES)
                backward = times.recompute + times.backward_input + times.backward_weight
                reduce_ns += self._overlap.exposed_ns(copies.reduce_ns(cluster, zero), backward, buckets)
            if self.training.optimizer != "none":
                optimizer_ns += self._update_ns(copies.trainable // (len(copies.ranks) if zero else 1))
                optimizer_ns += copies.gather_stepped_ns(cluster) if zero in (1, 2) else 0
        if spread.config.offload in ("optimizer", "parameters") and memory.host:
            optimizer_ns += self._update_on_host_ns(spread, memory.host) - self._update_on_device_ns(spread)
        return reduce_ns, optimizer_ns

    def _update_on_device_ns(self, spread: _Spread) -> int:
        """Return the part of the step that offload takes off the device."""
        if self.training.optimizer == "none":
            return 0
        zero = spread.config.zero
        return sum(self._update_ns(c.trainable // (len(c.ranks) if zero else 1)) for c in spread.copies)

    def _update_on_host_ns(self, spread: _Spread, host_bytes: int) -> int:
        """Return gradients down, step, parameters up (those of ZeRO-3 wait on the host until they are used)."""
        zero = spread.config.zero
        shard = sum(c.trainable // (len(c.ranks) if zero else 1) for c in spread.copies)
        copies = 1 if spread.config.offload == "parameters" else 2
        step = host.step_ns(self.cluster, spread.rank, host_bytes) if self.training.optimizer != "none" else 0
        return copies * host.transfer_ns(self.cluster, spread.rank, shard) + step

    def _update_ns(self, trainable_bytes: int) -> int:
        """Return the step over so many bytes: the profile's share, by the roofline where it does not apply."""
        whole, name = self.profile.whole.optimizer_ns, self.cluster.device_of(0).catalogue
        if (whole and not self.training.precision) or not name:
            return round(whole * self._share(trainable_bytes))
        precision = self.training.precision or self._build.profiled_precision
        precision = "bf16" if precision == "fp8" else precision
        found = optimizer_step_ns(trainable_bytes, catalogue_device(name), self.training.optimizer, precision)
        return found.central_ns

    def _memory(self, spread: _Spread, received: tuple[str, ...], in_flight: int) -> MemoryTerms:
        key = (_key(spread), received, in_flight)
        if key not in self._terms:
            self._terms[key] = self._memory_terms(spread, received, in_flight)
        return self._terms[key]

    def _states(self, spread: _Spread) -> States:
        config = spread.config
        if config.offload == "parameters" and config.zero < 3:
            raise UsageError(
                f"parameters are offloaded with zero {config.zero}; only ZeRO-3 gathers them for use: --zero 3, or "
                "--offload optimizer"
            )
        dense, experts = (
            states_of(
                Amounts(copies.weights, copies.trainable, len(copies.ranks)), self.training, config.zero, config.offload
            )
            for copies in spread.copies
        )
        return both(dense, experts)

    def _memory_terms(self, spread: _Spread, received: tuple[str, ...], in_flight: int) -> MemoryTerms:
        operators, vectors, config = spread.operators, spread.vectors, spread.config
        states = self._states(spread)
        kept = self._kept_bytes(vectors, operators, received)
        moved = kept if config.offload == "activations" else 0
        window = host.window_bytes(vectors.largest_block(operators, vectors.kept.kept), kept) if moved else 0
        held = kept - moved
        mixed, fp8_copy = self.training.mixed, states.parameters // 2 * (self.training.precision == "fp8")
        terms = MemoryTerms(
            parameters=Amount(states.parameters, states.parameters + fp8_copy),
            gradients=Amount(states.gradients, states.gradients * (2 if mixed else 1)),
            optimizer=Amount.known(states.optimizer),
            master_weights=Amount.known(states.master_weights),
            activations=Amount.known(held * in_flight),
            recompute_peak=Amount.known(vectors.recompute_peak(operators)),
            communication_buffers=self._buffers(spread),
            unsharded_parameters=self._unsharded(spread),
            offload_window=Amount.known(window),
            workspace=self._workspace(spread),
            fragmentation=Amount(),
            activations_per_microbatch=held,
            in_flight=in_flight,
            host=states.host + moved * in_flight,
        )
        return replace(terms, fragmentation=with_fragmentation(terms))

    def _buffers(self, spread: _Spread) -> Amount:
        """Return gathered values and gradient buckets; at most DDP's copy of all gradients, and communicators."""
        config, groups = spread.config, spread.groups
        gathered = spread.vectors.gathered_bytes(spread.operators)
        trainable = sum(copies.trainable for copies in spread.copies)
        point = upper = gathered
        if len(groups.replicas) > 1:
            unit = self._block_bytes(spread) if config.zero >= 2 else 2 * BUCKET_BYTES
            point += min(trainable, unit)
            upper += trainable if config.zero < 2 else min(trainable, 2 * unit)
        kinds = sum(len(group) > 1 for group in (groups.tensor, groups.context, groups.expert, groups.replicas))
        return Amount(point, upper + kinds * COMMUNICATOR_BYTES * self._cuda)

    def _block_bytes(self, spread: _Spread) -> int:
        vectors, operators = spread.vectors, spread.operators
        return max(vectors.largest_block(operators, s) for s in (vectors.weights.dense, vectors.weights.experts))

    def _unsharded(self, spread: _Spread) -> Amount:
        """Return the block in use and the one gathered ahead (Zhao et al., 2023, section 3.3)."""
        if spread.config.zero < 3 or len(spread.groups.replicas) == 1:
            return Amount()
        whole = sum(copies.weights for copies in spread.copies)
        return Amount.known(min(2 * self._block_bytes(spread), whole))

    def _workspace(self, spread: _Spread) -> Amount:
        """Return the gradient of the loss's input, alive while all else is kept, and cuBLAS's workspace."""
        loss = self._build.loss_gradient(spread.operators, spread.vectors.kept.tensor_bytes)
        return Amount(loss + CUBLAS_BYTES * self._cuda, 2 * loss + (4 * CUBLAS_BYTES + CONTEXT_BYTES) * self._cuda)

    @cached_property
    def _cuda(self) -> int:
        return int(self.cluster.device_of(0).type == "cuda")


def _times(vectors: Vectors, operators: Sequence[int]) -> Times:
    return Times(
        vectors.forward.over(operators),
        vectors.backward_input.over(operators),
        vectors.backward_weight.over(operators),
        vectors.recomputed.over(operators),
    )


def _key(spread: _Spread) -> object:
    """Return what a stage's price depends on; the members of a range are its ends."""
    members = spread.operators
    ends: object = (members.start, members.stop) if isinstance(members, range) else members
    return (ends, spread.config, spread.groups, spread.rank if spread.config.offload != "none" else 0)
