"""The cases of `benchmarks.first_answer`, and what an expert would type for each: flags that fix every degree.

The shapes are those of published jobs: replicas alone, fully sharded replicas, tensor parallelism inside a host with a
pipeline across hosts, experts within the replicas. Leaves out whether they fit: the planner says that.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from costmodel.machines.typical import typical_cluster

H100, A100 = "h100-sxm-80", "a100-sxm-80"
HOST = 8
"""Devices of a host."""
SLOW_GBS, SLOW_NS = 1.25, 20_000
"""A network of 10 Gb/s, which all devices of a host share."""
NUM_FIXED = 8
"""Fixed commands of a case."""
DENSE, EXPERTS, GRAPH = "dense", "experts", "graph"
EXPERTS_OF = {"mixtral-8x7b": 8, "qwen3-30b-a3b": 128, "gpt-oss-120b": 128, "deepseek-v3": 256}
TYPICAL, SLOW, MIXED, HOST_MEMORY = "", "10 Gb/s", "H100 + A100", "host memory"


@dataclass(frozen=True)
class Shape:
    """One way to lay a job out: degrees, ZeRO, recompute, stages a place, samples a micro-batch; 0 or "": searched."""

    stages: int
    data: int
    tensor: int = 1
    expert: int = 0
    zero: int = 0
    recompute: str = ""
    chunks: int = 0
    size: int = 0
    offload: str = ""

    @property
    def flags(self) -> str:
        """As flags of ``penstock plan``."""
        parts = [f"--stages {self.stages} --data {self.data} --tensor {self.tensor} --context 1 --zero {self.zero}"]
        parts += ["--sequence-parallel"] if self.tensor > 1 else []
        parts += [f"--expert {self.expert}"] if self.expert else []
        parts += [f"--recompute {self.recompute}"] if self.recompute else []
        parts += [f"--chunks {self.chunks} --schedule interleaved-1f1b"] if self.chunks else []
        parts += [f"--microbatch-size {self.size}"] if self.size else []
        parts += [f"--offload {self.offload}"] if self.offload else []
        return " ".join(parts)


@dataclass(frozen=True)
class Case:
    """A model on a cluster, with the samples of a step; `sequence` 0 is the model's own."""

    model: str
    devices: int
    batch: int
    place: str = TYPICAL
    sequence: int = 0

    @property
    def name(self) -> str:
        """As it is shown and chosen by."""
        return f"{self.model} on {self.devices}" + f", {self.place}" * bool(self.place)

    @property
    def kind(self) -> str:
        """Which shapes are usual for it."""
        if self.model in EXPERTS_OF:
            return EXPERTS
        return DENSE if self.model.startswith("llama") else GRAPH

    @property
    def catalogue_ids(self) -> tuple[str, ...]:
        """Its types of device, each of which has a profile of its own."""
        return (H100, A100) if self.place == MIXED else (H100,)

    @property
    def fixed(self) -> list[str]:
        """The flags of the fixed commands: the first eight of the usual shapes that divide devices and batch."""
        shapes = {DENSE: _dense, EXPERTS: _experts, GRAPH: _graph}[self.kind](self.devices)
        if self.place == HOST_MEMORY:
            shapes = chain(_offloaded(self.devices), shapes)
        return list(dict.fromkeys(each.flags for each in shapes if self.divides(each)))[:NUM_FIXED]

    def divides(self, shape: Shape) -> bool:
        """Whether a shape takes all devices, and its replicas divide the batch."""
        experts = EXPERTS_OF.get(self.model, 0)
        return (
            shape.stages * shape.data * shape.tensor == self.devices
            and self.batch % (shape.data * max(1, shape.size)) == 0
            and (shape.zero == 0 or shape.data > 1)
            and (not shape.expert or (shape.data % shape.expert == 0 and experts % shape.expert == 0))
        )

    def cluster_text(self) -> str:
        """Return its cluster file; empty where the planner's typical host stands."""
        if self.place == TYPICAL:
            return ""
        num_hosts = self.devices // HOST
        known = typical_cluster(H100, max(self.devices, 2 * HOST))
        inner, outer = known.groups
        types = [_device(each) for each in self.catalogue_ids]
        count = num_hosts // len(self.catalogue_ids)
        room = "memory_gib = 1024\n" if self.place == HOST_MEMORY else ""
        hosts = [
            f'[[host]]\ncount = {count}\ndevice = "{each}"\ndevices = {HOST}\n{room}' for each in self.catalogue_ids
        ]
        links = [_link("host", HOST if num_hosts > 1 else 0, inner.bandwidth_gbs, inner.latency_ns)]
        if num_hosts > 1:
            slow = self.place == SLOW
            gbs, latency_ns = (SLOW_GBS, SLOW_NS) if slow else (outer.bandwidth_gbs, outer.latency_ns)
            links.append(_link("network", 0, gbs, latency_ns))
            links[-1] += f"shared_gbs = {SLOW_GBS}\n" if slow else ""
        return "\n".join(['format = "penstock-cluster"\nversion = 1\n', *types, *hosts, *links])


CASES = (
    *(Case(model, 8, 64) for model in ("llama3-8b", "qwen3-30b-a3b", "nasnet", "zoo:dlrm", "zoo:mmt", "zoo:vlm")),
    *(Case(model, 64, 512) for model in ("llama3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b")),
    *(Case(model, 64, 512) for model in ("nasnet", "zoo:mmt")),
    Case("llama3-70b", 64, 1024, sequence=8192),
    *(Case(model, 1024, 1024) for model in ("llama3-405b", "llama3-70b")),
    *(Case(model, 1024, 8192) for model in ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3")),
    *(Case(model, 64, 512, SLOW) for model in ("llama3-8b", "mixtral-8x7b")),
    Case("llama3-8b", 16, 128, MIXED),
    Case("llama3-8b", 8, 64, HOST_MEMORY),
    Case("llama3-70b", 64, 512, HOST_MEMORY),
)
"""Eight language and expert models and four graphs, on 8, 64 and 1,024 devices."""
AT_TWO_SECONDS = ("llama3-8b on 8", "llama3-70b on 64", "gpt-oss-120b on 64", "llama3-405b on 1024")
"""Cases whose fixed commands are held against the answer at two seconds, too."""
BESIDE_OTHERS = (*AT_TWO_SECONDS, "zoo:mmt on 8", "deepseek-v3 on 1024")
"""Cases that are asked beside busy processes."""


def _across(devices: int) -> tuple[int, ...]:
    """Return the usual numbers of stages where a host's devices divide operators, the most usual first."""
    return {8: (1,), 16: (2,), 64: (4, 8, 2)}.get(devices, (16, 8, 4, 32))


def _dense(devices: int) -> Iterator[Shape]:
    """Yield what people type for a language model without experts."""
    deep, *others = _across(devices)
    yield Shape(1, devices, zero=3)
    yield Shape(1, devices, zero=3, size=1)
    yield Shape(deep, devices // HOST // deep, HOST, zero=1, recompute="selective")
    yield Shape(deep, devices // HOST // deep, HOST, zero=1, recompute="full", size=1)
    yield Shape(1, devices // HOST, HOST, zero=3)
    for stages in others:
        yield Shape(stages, devices // HOST // stages, HOST, zero=1)
    for stages, tensor in ((deep, HOST), (2, 4), (4, 2)):
        yield Shape(stages, devices // tensor // stages, tensor, zero=1, chunks=2, recompute="selective")
    yield Shape(1, devices, zero=3, recompute="full")
    yield Shape(2, devices // 2, zero=1)
    yield Shape(4, devices // 4, zero=1)
    yield Shape(8, devices // 8, zero=1)
    yield Shape(8, devices // 8)
    yield Shape(2, devices // 4, 2, zero=1)
    yield Shape(1, devices // 2, 2, zero=3)


def _offloaded(devices: int) -> Iterator[Shape]:
    """Yield what people type where hosts have memory."""
    yield Shape(1, devices, zero=2, recompute="full", size=1, offload="optimizer")
    yield Shape(1, devices, zero=3, recompute="full", offload="parameters")


def _experts(devices: int) -> Iterator[Shape]:
    """Yield what people type for a model with experts."""
    yield Shape(1, devices, expert=8, zero=3)
    for stages, expert in ((16, 64), (8, 8), (4, 8), (4, 64), (8, 64), (2, 4)):
        yield Shape(stages, devices // stages, expert=expert, zero=1)
    yield Shape(4, devices // 4, expert=64, zero=3)
    yield Shape(1, devices, expert=8, zero=3, size=1, recompute="full")
    yield Shape(4, devices // 8, 2, expert=8, zero=1)
    yield Shape(1, devices, expert=64, zero=3)
    yield Shape(4, devices // 4, expert=8, zero=1, chunks=2)
    yield Shape(2, devices // 2, expert=4, zero=3)
    yield Shape(1, devices // 2, 2, expert=4, zero=1)
    yield Shape(1, devices, expert=4, zero=3)
    yield Shape(1, devices, expert=1, zero=3)
    yield Shape(2, devices // 2, expert=4, zero=1, chunks=2)


def _graph(devices: int) -> Iterator[Shape]:
    """Yield what people type for a model of branches, whose operators are not divided."""
    for zero in (0, 1, 3):
        yield Shape(1, devices, zero=zero)
    for stages in (2, 4, 8):
        yield Shape(stages, devices // stages)
    yield Shape(4, devices // 4, zero=1)
    yield Shape(2, devices // 2, chunks=2)
    yield Shape(1, devices, recompute="full")
    yield Shape(2, devices // 2, size=1)


def _device(catalogue_id: str) -> str:
    return f'[[device]]\nname = "{catalogue_id}"\ncatalogue = "{catalogue_id}"\n'


def _link(name: str, group: int, bandwidth_gbs: float, latency_ns: int) -> str:
    rates = f"bandwidth_gbs = {bandwidth_gbs}\nlatency_us = {latency_ns / 1000}\n"
    return f'[[link]]\nname = "{name}"\ngroup = {group}\n{rates}'
