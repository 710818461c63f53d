"""The configurations that `benchmarks.sweep` prices: every legal way to train on so many devices, each once.

A layout is tensor x context x pipeline x data, which make the devices; beside it stand sequence parallelism (where
there are tensor-parallel ranks), micro-batch size, recompute, ZeRO (above 0 where there are copies to shard over),
offload (parameters with ZeRO-3 alone) and whether gradients are summed beside the backward. Leaves out what prices
alike (fp16 and bf16), chunks, experts, and degrees that do not divide heads, layers or the batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from costmodel.stages.config import RECOMPUTE, StageConfig


@dataclass(frozen=True, slots=True)
class Job:
    """What all configurations share: devices, samples of a step, and what degrees must divide."""

    devices: int
    global_batch: int
    heads: int
    layers: int
    largest_microbatch: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One configuration: the same `config` on each of `pipeline` stages."""

    config: StageConfig
    pipeline: int
    microbatch_size: int
    sequence_parallel: bool
    overlap: bool

    @property
    def ranks_per_stage(self) -> int:
        """Devices of a stage."""
        return self.config.tensor * self.config.context * self.config.data

    def num_microbatches(self, global_batch: int) -> int:
        """Micro-batches of a step."""
        return global_batch // (self.config.data * self.microbatch_size)

    def __str__(self) -> str:
        config = self.config
        parts = [f"t{config.tensor}", f"c{config.context}", f"p{self.pipeline}", f"d{config.data}"]
        parts += [f"mb{self.microbatch_size}", f"zero-{config.zero}", f"recompute {config.recompute}"]
        parts += [f"offload {config.offload}"] * (config.offload != "none")
        parts += ["sequence"] * self.sequence_parallel + ["no overlap"] * (not self.overlap)
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Group:
    """Configurations that share a cost model and what operators cost."""

    tensor: int
    sequence_parallel: bool
    microbatch_size: int
    overlap: bool


def groups(job: Job) -> Iterator[Group]:
    """Yield the groups of all configurations."""
    degrees = [t for t in divisors(job.devices) if not job.heads % t]
    sizes = [b for b in divisors(job.global_batch) if b <= job.largest_microbatch]
    for tensor, size, overlap in product(degrees, sizes, (True, False)):
        for sequence_parallel in (False, True) if tensor > 1 else (False,):
            yield Group(tensor, sequence_parallel, size, overlap)


def choices(job: Job, group: Group) -> Iterator[Choice]:
    """Yield the configurations of a group, those that share most behind each other."""
    for context in divisors(job.devices // group.tensor):
        for recompute in RECOMPUTE:
            for data in divisors(job.devices // (group.tensor * context)):
                pipeline = job.devices // (group.tensor * context * data)
                if job.layers % pipeline or job.global_batch % (data * group.microbatch_size):
                    continue
                for zero, offload in _sharded(data * context):
                    config = StageConfig(
                        data, group.tensor, context=context, zero=zero, recompute=recompute, offload=offload
                    )
                    yield Choice(config, pipeline, group.microbatch_size, group.sequence_parallel, group.overlap)


def _sharded(copies: int) -> Iterator[tuple[int, str]]:
    """Yield ZeRO stages and offloads that mean something with so many copies of the weights."""
    for zero in range(4) if copies > 1 else (0,):
        yield from ((zero, offload) for offload in ("none", "optimizer", "activations"))
        if zero == 3:
            yield zero, "parameters"


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, rising."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)
