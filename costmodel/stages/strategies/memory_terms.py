"""Works out a stage's memory terms: states, activations and what comes and goes in addition.

Each term has its sources in `costmodel.stages.strategies.memory`, `states` and `saved_activations`. Leaves out tensors
that flow between stages: the simulator counts their buffers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.errors import UsageError
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import host
from costmodel.stages.strategies.build import Build
from costmodel.stages.strategies.division import ceil, is_expert
from costmodel.stages.strategies.gradients import Copies
from costmodel.stages.strategies.memory import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    CUBLAS_BYTES,
    WORST_LOAD,
    Amount,
    MemoryTerms,
)
from costmodel.stages.strategies.stage_sharding import StageSharding
from costmodel.stages.strategies.states import SCATTERED, Amounts, States, both, states_of
from costmodel.stages.strategies.vectors import Vectors


@dataclass(frozen=True)
class MemoryModel:
    """Memory of stages of one `Build`."""

    build: Build

    def terms(self, sharding: StageSharding, kept_bytes: int, num_microbatches: int) -> MemoryTerms:
        """Return all terms with one micro-batch alive.

        Parameters
        ----------
        num_microbatches : int
            Of a step.
        kept_bytes : int
            Of one micro-batch, with what was received for it.
        """
        states, training = self.states(sharding.config, sharding.copies), self.build.training
        moved = moved_bytes(sharding, kept_bytes)
        routed = self._experts_kept(sharding, kept_bytes - moved)
        narrow_copy = training.cast_bytes(self._cast(sharding, states.parameters)) if training.narrow else 0
        return MemoryTerms(
            parameters=Amount(states.parameters, states.parameters + narrow_copy * training.fp8_copy_bytes),
            gradients=Amount(states.gradients, self._widest(states.gradients)),
            optimizer=Amount.known(states.optimizer),
            master_weights=Amount.known(states.master_weights),
            gradient_copies=self._gradient_copies(sharding),
            activations=_kept(kept_bytes - moved, routed),
            recompute_peak=Amount.known(sharding.vectors.recompute_peak(sharding.operators)),
            communication_buffers=self._buffers(sharding, kept_bytes),
            message_buffers=Amount.known(num_microbatches * self._messages(sharding)),
            unsharded_parameters=self._unsharded(sharding),
            offload_window=self._window(sharding, moved),
            workspace=self._workspace(sharding),
            communicators=self._communicators(sharding),
            context=CONTEXT_BYTES * self.build.cuda,
            fragmenting=training.fragmentation,
            activations_per_microbatch=kept_bytes - moved,
            experts_per_microbatch=routed,
            in_flight=1,
            host=states.host + moved,
        )

    def _cast(self, sharding: StageSharding, parameters: int) -> int:
        """Return the weights of which narrow copies may be there at once, in 16 bits.

        Transformer Engine keeps them from one micro-batch to the next; torchao's go with what else a product keeps,
        and are made again with a block that runs again.
        """
        if self.build.training.fp8_inputs or sharding.config.recompute == "none":
            return parameters
        return min(parameters, sharding.vectors.largest_weights(sharding.operators))

    def _widest(self, gradients: int) -> int:
        """Return what gradients take in fp32, as some trainers keep those of 16 bits; others keep both.

        Those that are summed where they are kept, or by FSDP2, are of the trainer's width.
        """
        training = self.build.training
        known = training.summed_in_place or training.by_block
        if not training.mixed or training.gradient_copy_bytes or known:
            return gradients
        return gradients * 4 // training.gradient_width(4)

    def _gradient_copies(self, sharding: StageSharding) -> Amount:
        """Return what gradients take a second time.

        DeepSpeed's BF16 optimizer sums gradients of 16 bits into fp32 ones, which its ZeRO-2 and 3, and those of fp16,
        make of their parts alone when they step. FSDP2 sums whole gradients of a step into parts of their own. Where a
        product sums its weights' gradients into the buffer in which they are kept, Transformer Engine gives autograd an
        empty one instead, one for all weights of one shape.
        """
        training, config = self.build.training, sharding.config
        stands = sharding.vectors.weights.stand_ins.over(sharding.operators)
        if training.by_block and config.zero == 1:
            width = training.gradient_width(1), training.width(1)
            parts = [ceil(each.trainable // width[1] * width[0], len(each.ranks)) for each in sharding.copies]
            return Amount.known(sum(parts))
        if not training.mixed or config.offload in ("optimizer", "parameters"):
            return Amount.known(stands)
        whole = config.zero < SCATTERED and training.precision == "bf16"
        copied = sum(
            ceil(
                copies.trainable // training.width(0) * training.gradient_copy_bytes, 1 if whole else len(copies.ranks)
            )
            for copies in sharding.copies
        )
        return Amount(stands + copied * whole, stands + copied)

    def _experts_kept(self, sharding: StageSharding, kept_bytes: int) -> int:
        """Return what experts keep of one micro-batch where ranks share them, so that loads may be uneven."""
        if sharding.config.expert == 1:
            return 0
        operators, rows = self.build.model.profile.graph.operators, sharding.vectors.saved.until_backward.rows
        largest: dict[object, int] = {}
        for i in sharding.operators:
            if is_expert(operators[i]):
                largest.update(rows[i])
        return min(kept_bytes, sum(largest.values()))

    def with_more(self, sharding: StageSharding, one: MemoryTerms, kept_bytes: int, in_flight: int) -> MemoryTerms:
        """Return the terms of `one` micro-batch with `in_flight` alive."""
        return replace(
            one,
            activations=_kept(one.activations_per_microbatch * in_flight, one.experts_per_microbatch * in_flight),
            in_flight=in_flight,
            host=one.host + moved_bytes(sharding, kept_bytes) * (in_flight - 1),
        )

    def states(self, config: StageConfig, copies: Sequence[Copies]) -> States:
        """Return what weights, gradients and states take on one rank.

        Raises
        ------
        UsageError
            For parameters on the host that no ZeRO-3 gathers for use.
        """
        if config.offload == "parameters" and config.zero < 3:
            raise UsageError(
                f"parameters are offloaded with zero {config.zero}; only ZeRO-3 gathers them for use: --zero 3, or "
                "--offload optimizer"
            )
        dense, experts = (
            states_of(
                Amounts(each.weights, each.trainable, len(each.ranks)),
                self.build.training,
                config.zero,
                config.offload,
                config.offload_fraction,
            )
            for each in copies
        )
        return both(dense, experts)

    def _buffers(self, sharding: StageSharding, kept_bytes: int) -> Amount:
        """Return gathered values and gradient buckets; at most DDP's copy of all gradients.

        FSDP2 copies a block's gradients of 16 bits into a message in which they are summed, of the trainer's width, and
        weights that it keeps whole out of messages, one of which arrives ahead;
        DTensor keeps what attention and what the MLP of a block have gathered until their backward.
        """
        training, config, trainable = self.build.training, sharding.config, sharding.trainable_bytes
        point = upper = sharding.vectors.gathered_bytes(sharding.operators) * (1 + training.by_block)
        if training.whole_stages and config.gathers:
            summed, working = self._summed_in_units(sharding, kept_bytes), self._working(sharding)
            most = max(summed, working, self._begun(sharding, working))
            point += most - working  # which counts by itself
            upper += max(2 * summed, most)
        elif training.by_block and len(sharding.groups.replicas) > 1:
            unit = min(trainable, sharding.vectors.largest_weights(sharding.operators))
            message = unit // training.width(1) * training.gradient_width(1)
            gathers = min(2 * unit, trainable) * (config.zero == 1)
            point += unit + message + gathers
            upper += min(2 * trainable, unit + 2 * message) + gathers
        elif config.zero >= 2 or config.offload in ("optimizer", "parameters"):
            unit = sharding.vectors.largest_weights(
                sharding.operators
            )  # gradients stay whole until their block's backward ends
            point += min(trainable, unit)
            upper += min(trainable, 2 * unit)
        elif len(sharding.groups.replicas) > 1:
            point += min(trainable, 2 * training.bucket_bytes)
            upper += min(trainable, 2 * training.bucket_bytes) if training.summed_in_place else trainable
        return Amount(point, upper)

    def _messages(self, sharding: StageSharding) -> int:
        """Return what torch's pipelines hold of each micro-batch of a step: buffers of what a stage receives.

        Those are its inputs and its outputs' gradients. Older versions keep outputs, too, until the step ends.
        """
        training, sizes = self.build.training, sharding.vectors.saved.tensor_bytes
        if not training.by_block or len(sharding.operators) == len(self.build.model.profile.graph.operators):
            return 0
        begin, end, crossing = sharding.operators[0], sharding.operators[-1] + 1, self.build.crossing(sizes)
        made = crossing[end] or self.build.loss_gradient(sharding.operators, sizes)
        return crossing[begin] + crossing[end] + made * training.outputs_kept

    def _communicators(self, sharding: StageSharding) -> int:
        """Return what NCCL takes for the groups in which a stage's rank sums and gathers, at most."""
        groups = sharding.groups
        inside = groups.inside if groups.expert_tensor != groups.tensor else groups.inside[:-1]
        own = (*inside, groups.replicas, groups.across)
        kinds = sum(len(group) > 1 for group in own)
        return kinds * COMMUNICATOR_BYTES * self.build.cuda

    def _summed_in_units(self, sharding: StageSharding, kept_bytes: int) -> int:
        """Return the most that gradients take on their way to their sum, less what has been let go of by then.

        Within a block's backward those of that block and of what is outside of blocks, and what is still being sent of
        the block before; it is gone when the block after next has ended, which by then has let go of its activations.
        When a block ends, its gradients are copied into the message, and their sum is there too; under ZeRO-3 what was
        gathered is let go of first. So are all activations of the micro-batch where what is outside of blocks ends.
        """
        units, copies = sharding.vectors.units.over(sharding.operators), len(sharding.groups.replicas)
        beside = min(sharding.trainable_bytes, units.beside)
        block = min(sharding.trainable_bytes - beside, units.largest)
        kept, gathered = sharding.vectors.largest_kept(sharding.operators), block * (sharding.config.zero > SCATTERED)
        sent = max(0, block - kept) if units.count > 2 else 0
        block_ends = 2 * block + ceil(block, copies) - kept - gathered
        all_end = beside + ceil(beside, copies) - kept_bytes - min(2, units.count) * gathered
        return beside + max(block + sent, block_ends, all_end)

    def _begun(self, sharding: StageSharding, working: int) -> int:
        """Return what is there beyond `_unsharded` when a backward begins, with all activations still kept.

        The last gradients of the micro-batch before are held until the next are summed. What is gathered lies in the
        message's buffer, too, until it is copied out of that.
        """
        units = sharding.vectors.units.over(sharding.operators)
        first = units.beside or units.largest
        held = min(sharding.trainable_bytes, first)
        if sharding.config.zero == SCATTERED:
            return held + working
        gathered = max(2 * first, units.beside + min(1, units.count) * units.largest + working)
        return held + gathered - self._unsharded(sharding).point

    def _unsharded(self, sharding: StageSharding) -> Amount:
        """Return the block in use and the one gathered ahead (Zhao et al., 2023, section 3.3).

        The executor gathers what is outside of blocks with the stage, and keeps the parts under ZeRO-2, too.
        """
        whole = sum(copies.weights for copies in sharding.copies)
        if self.build.training.whole_stages and sharding.config.gathers:
            if sharding.config.zero == SCATTERED:
                return Amount.known(ceil(whole, len(sharding.groups.replicas)))
            units = sharding.vectors.units.over(sharding.operators)
            return Amount.known(units.beside + min(2, units.count) * units.largest)
        if sharding.config.offload == "parameters" or (sharding.config.zero == 3 and sharding.sharded):
            return Amount.known(min(2 * sharding.vectors.largest_weights(sharding.operators), whole))
        return Amount()

    def _window(self, sharding: StageSharding, moved_bytes: int) -> Amount:
        """Return what of offloaded activations is on the device at once: a block in use, one on its way."""
        if not moved_bytes:
            return Amount()
        return Amount.known(min(2 * sharding.vectors.largest_kept(sharding.operators), moved_bytes))

    def _working(self, sharding: StageSharding) -> int:
        return self.working_bytes(sharding.vectors, sharding.operators, sharding.config.tensor)

    def working_bytes(self, vectors: Vectors, operators: Sequence[int], tensor: int) -> int:
        """Return what is alive beyond all that is kept while a micro-batch runs: measured, or the loss's gradient."""
        found, width = vectors.workspace_peak(operators), self.build.training.loss_work_bytes(tensor)
        return self._of_loss(vectors, operators, width) if found is None else found

    def _of_loss(self, vectors: Vectors, operators: Sequence[int], width: int) -> int:
        """Return the bytes of all logits at `width` bytes each."""
        return self.build.loss_gradient(operators, vectors.saved.tensor_bytes) * width // 2

    def _workspace(self, sharding: StageSharding) -> Amount:
        """Return what a micro-batch works with beyond what is kept, and cuBLAS's workspace."""
        working, cuda = self._working(sharding), self.build.cuda
        most = 2 * working
        if sharding.vectors.workspace is None:
            worst = self.build.training.worst_loss_bytes(sharding.config.tensor)
            most = self._of_loss(sharding.vectors, sharding.operators, worst)
        return Amount(working + CUBLAS_BYTES * cuda, most + 4 * CUBLAS_BYTES * cuda)


def _kept(kept_bytes: int, routed_bytes: int) -> Amount:
    """Return what is kept, `routed_bytes` of it by experts, which keep more where one rank's get more tokens."""
    return Amount(kept_bytes, kept_bytes + round((WORST_LOAD - 1) * routed_bytes))


def moved_bytes(sharding: StageSharding, kept_bytes: int) -> int:
    """Return what of one micro-batch's kept bytes lives on the host."""
    config = sharding.config
    return int(config.offload_fraction * kept_bytes) if config.offload == "activations" else 0


def check_host(build: Build, sharding: StageSharding, memory: MemoryTerms) -> None:
    """Refuse what a host cannot hold."""
    if memory.host:
        host.check_room(build.cluster, sharding.rank, memory.host)
