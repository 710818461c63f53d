"""The sweep itself: each group of configurations priced by a worker, and what all groups come to.

Apart from the command, because the workers' processes find it by this name. Leaves out what is printed.
"""

import gc
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from multiprocessing import Pool

from benchmarks.sweep.choices import Choice, Group, Job, choices, divisors, groups
from benchmarks.sweep.prices import FamilyPartitions, Price, Prices, even_cuts
from costmodel.architectures.command import make
from costmodel.machines import catalogue
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import GIB, DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile
from costmodel.stages.strategies.blocks import block_names, block_spans

MODEL, DEVICE, SEQUENCE = "gpt3-175b", "a100-sxm-80", 2048
BEST = 10
TRAINED = 3
"""A backward takes twice the floating-point operations of the forward."""

Found = tuple[Choice, Price]


def machines(devices: int) -> Cluster:
    """Return hosts of eight A100s: NVLink at its catalogue rate, InfiniBand HDR, 2 TiB of host memory."""
    known = catalogue.device(DEVICE)
    beside = min(8, devices)
    links = (LinkGroup("nvlink", beside, known.scaleup_gbs, 6000), LinkGroup("infiniband", 0, 25.0, 10_000))
    host = Host(DEVICE, beside, devices // beside, 2048 * GIB)
    return Cluster((DeviceType(DEVICE, known.memory_bytes, "cuda", DEVICE),), (host,), links)


@dataclass(frozen=True)
class Sweep:
    """What every worker needs to price configurations."""

    profile: Profile
    cluster: Cluster
    job: Job
    cuts: Mapping[int, FamilyPartitions]

    @classmethod
    def of(cls, devices: int, batch: int, largest_microbatch: int, model: str = MODEL) -> "Sweep":
        """Describe the model and divide its layers."""
        profile, _ = make(model, DEVICE, (1, 2, 4, 8, 16, 32), SEQUENCE, "bf16")
        graph = profile.graph
        layers = len(block_spans(block_names(graph.operators)))
        heads = max(o.work.heads for o in graph.operators if o.work)
        stages = [p for p in divisors(devices) if not layers % p]
        cuts = {p: even_cuts(graph, p) for p in stages}
        return cls(profile, machines(devices), Job(devices, batch, heads, layers, largest_microbatch), cuts)

    def prices(self, group: Group) -> Prices:
        """Return a new cost model for a group."""
        return Prices(self.profile, self.cluster, self.job, self.cuts, group)

    def mfu(self, time_ns: int) -> float:
        """Return what of the devices' peak a step of this time uses."""
        flop = TRAINED * sum(operator.flop for operator in self.profile.graph.operators) * self.job.global_batch
        return flop / (time_ns * 1e3 * catalogue.device(DEVICE).tflops["bf16"] * self.job.devices)


@dataclass(frozen=True)
class Tally:
    """What a group's configurations come to."""

    num_priced: int
    num_refused: int
    num_fit: int
    num_fit_upper: int
    best: tuple[Found, ...]
    seconds: tuple[float, ...]
    cpu_seconds: float


def tally(sweep: Sweep, group: Group) -> Tally:
    """Price a group."""
    started = time.process_time()
    prices, seconds, found = sweep.prices(group), [], []
    for choice in choices(sweep.job, group):
        begin = time.perf_counter()
        price = prices.price(choice)
        seconds.append(time.perf_counter() - begin)
        if price:
            found.append((choice, price))
    room = sweep.cluster.device_of(0).memory_bytes
    safe = [row for row in found if row[1].upper_bytes <= room]
    fit = sum(price.memory_bytes <= room for _, price in found)
    cpu_seconds = time.process_time() - started
    return Tally(len(seconds), len(seconds) - len(found), fit, len(safe), best_of(safe), tuple(seconds), cpu_seconds)


def best_of(found: Sequence[Found]) -> tuple[Found, ...]:
    """Return the fastest, those alike in a fixed order."""
    return tuple(nsmallest(BEST, found, key=lambda row: (row[1].time_ns, str(row[0]))))


_workers: dict[str, Sweep] = {}


def _start(sweep: Sweep) -> None:
    gc.disable()  # a group's many small objects hold no cycles: they go with its cost model
    _workers["sweep"] = sweep


def _tally(group: Group) -> Tally:
    return tally(_workers["sweep"], group)


def run(sweep: Sweep, workers: int) -> tuple[Tally, float]:
    """Price everything; returns the sum of all groups and the seconds that it took."""
    todo = sorted(groups(sweep.job), key=lambda group: group.tensor)
    begin, rows = time.perf_counter(), []
    with Pool(workers, _start, (sweep,)) as pool:
        for number, row in enumerate(pool.imap_unordered(_tally, todo), 1):
            rows.append(row)
            if number % 20 == 0 or number == len(todo):
                done = sum(row.num_priced for row in rows)
                print(f"{done} configurations, {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - begin
    return Tally(
        sum(row.num_priced for row in rows),
        sum(row.num_refused for row in rows),
        sum(row.num_fit for row in rows),
        sum(row.num_fit_upper for row in rows),
        best_of([found for row in rows for found in row.best]),
        tuple(second for row in rows for second in row.seconds),
        sum(row.cpu_seconds for row in rows),
    ), seconds
