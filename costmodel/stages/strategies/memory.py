"""The memory of a stage on one rank, term by term: a point estimate and an upper bound of each.

The point counts tensors. The upper bound adds what trainers may keep besides (fp32 gradients in addition to 16-bit
weights, bucket copies), what the allocator reserves and does not use, and what no allocator counts: the context and
the buffers of communicators. Leaves out other programs on the device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

UNSEEN = 0.04
"""Part by which tensors may exceed the sum of the terms' upper bounds: small ones, and blocks that are rounded up."""
WORST_LOAD = 1.5
"""Tokens of the experts on one rank, at most, over those of an even load."""
KINDS = ("allocated", "reserved", "device")
"""What counts of memory: tensors, what torch's allocator took for them, and all that the device has in use."""
CONTEXT_BYTES = 768 * 2**20
"""A CUDA context with loaded kernels, at most: 685 MiB on an H100 (torch 2.11, CUDA 13), in use by no tensor."""
COMMUNICATOR_BYTES = 256 * 2**20
"""Buffers of one NCCL communicator, at most: up to 32 channels of 4 MiB a peer in both directions."""
MESSAGES_BYTES = 64 * 2**20
"""Buffers of a communicator of two ranks that carries messages, at most: 4 channels of 4 MiB, both directions, and as
much again for the two protocols of short messages. The executor gives it no more channels."""
CUBLAS_BYTES = 8 * 2**20
"""torch's default workspace of cuBLAS, ``:4096:2:16:8``; on Hopper it is 32 MiB, which the upper bound takes."""
TERMS = ("parameters", "gradients", "optimizer", "master_weights", "gradient_copies", "activations", "recompute_peak",
         "communication_buffers", "message_buffers", "unsharded_parameters", "offload_window", "workspace")  # fmt: skip
OUTSIDE = ("communicators", "context")
"""Terms that no allocator of torch's counts: upper bounds alone."""
USUAL = TERMS[:3]
_amounts: Callable[["MemoryTerms"], tuple["Amount", ...]] = attrgetter(*TERMS)


class Amount(NamedTuple):
    """A number of bytes: estimate and upper bound."""

    point: int = 0
    upper: int = 0

    @classmethod
    def known(cls, size_bytes: int) -> "Amount":
        """Return an amount without doubt."""
        return cls(size_bytes, size_bytes)


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    """Bytes on one rank's device, each as `Amount`.

    Attributes
    ----------
    parameters, gradients, optimizer, master_weights : Amount
        What a stage holds all the time.
    gradient_copies : Amount
        Gradients kept twice: in fp32 as well as in 16 bits, or to stand in for those that are summed in place.
    activations : Amount
        Activations saved by all micro-batches in flight; in the upper bound those of experts at their worst load.
    recompute_peak : Amount
        Made again by one block's (or attention's) recompute while its backward runs.
    communication_buffers : Amount
        Gathered values, gradient buckets.
    message_buffers : Amount
        Of what a stage receives, where those of all micro-batches are made at once, and outputs kept until a step ends.
    unsharded_parameters : Amount
        ZeRO-3: the block in use and the one gathered ahead.
    offload_window : Amount
        Activations on their way to the host or back.
    workspace : Amount
        Matmul workspace, and what a micro-batch works with while all else is kept (not measured: the gradient of the
        loss's input).
    communicators, context : int
        At most: buffers of NCCL, and the CUDA context.
    fragmenting : float
        Part of its tensors' bytes that the allocator may reserve besides (`TrainingJob.fragmentation`).
    activations_per_microbatch, experts_per_microbatch, in_flight, host : int
        One micro-batch's bytes, those of experts among them, how many are alive, and bytes in host memory.
    """

    parameters: Amount
    gradients: Amount
    optimizer: Amount
    master_weights: Amount
    gradient_copies: Amount
    activations: Amount
    recompute_peak: Amount
    communication_buffers: Amount
    message_buffers: Amount
    unsharded_parameters: Amount
    offload_window: Amount
    workspace: Amount
    communicators: int
    context: int
    fragmenting: float
    activations_per_microbatch: int
    experts_per_microbatch: int
    in_flight: int
    host: int

    def items(self) -> Mapping[str, Amount]:
        """Return the terms on the device by name."""
        outside = {name: Amount(0, getattr(self, name)) for name in OUTSIDE}
        return {**dict(zip(TERMS, _amounts(self), strict=True)), "fragmentation": self.fragmentation, **outside}

    @property
    def fragmentation(self) -> Amount:
        """What an allocator may hold of the others and not use: upper bound alone."""
        return Amount(0, round(self.fragmenting * self.tensors_upper))

    @property
    def tensors_upper(self) -> int:
        """Bytes of tensors: the upper bound."""
        return sum([amount.upper for amount in _amounts(self)])

    @property
    def point_bytes(self) -> int:
        """Bytes on the device: the estimate."""
        return sum([amount.point for amount in _amounts(self)])

    @property
    def upper_bytes(self) -> int:
        """Bytes on the device: the upper bound."""
        return self.tensors_upper + self.fragmentation.upper + self.communicators + self.context

    def static(self) -> tuple[tuple[str, int], ...]:
        """Return the terms held all the time (estimates), those that are nothing left out but the three usual ones."""
        return tuple(
            (name, amount.point)
            for name, amount in zip(TERMS, _amounts(self), strict=True)
            if name != "activations" and (amount.point or name in USUAL)
        )
