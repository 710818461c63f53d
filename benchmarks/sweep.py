"""Every legal configuration of GPT-3 175B on 64 A100s priced: how many a second, how many fit, which are the best.

    python -m benchmarks.sweep [--workers 2] [--devices 64] [--batch 1536] [--largest-microbatch 32] [--json]

Configurations are those of `benchmarks.sweep_choices`, each priced once (`benchmarks.sweep_prices`: time in closed
form, memory term by term) with Adam in bf16; hosts of eight joined by NVLink 3, one 200 Gbit/s card a device, 2,048
tokens a sample. The best ten of those whose upper bound of memory fits are simulated. Beside that: one configuration
with nothing priced before (a new cost model each time) and within the sweep, and `penstock model` as a whole command.
`cpu_seconds` are those of all workers; on a machine at rest the sweep takes them over the number of workers.
Others on one core: calculon about 220 configurations a second, llm-analysis 0.55 ms one without any bubble (both timed
beforehand, not by this command).
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from multiprocessing import Pool
from pathlib import Path
from statistics import median

from benchmarks.sweep_choices import Choice, Group, Job, choices, divisors, groups
from benchmarks.sweep_prices import FamilyPartitions, Price, Prices, even_cuts
from costmodel.architectures.command import make
from costmodel.machines import catalogue
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import GIB, DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile
from costmodel.stages.strategies.blocks import block_names, block_spans

MODEL, DEVICE, SEQUENCE = "gpt3-175b", "a100-sxm-80", 2048
PROFILED = ("llama3-70b", "deepseek-v3")
BEST, COLD = 10, 50
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


def cold_seconds(sweep: Sweep) -> list[float]:
    """Time single configurations, spread over all groups, each with a cost model of its own."""
    todo, taken = list(groups(sweep.job)), []
    for group in todo[:: max(1, len(todo) // COLD)]:
        row = list(choices(sweep.job, group))
        begin = time.perf_counter()
        sweep.prices(group).price(row[len(row) // 2])
        taken.append(time.perf_counter() - begin)
    return taken


def described_seconds(name: str) -> float:
    """Time ``penstock model`` from start to exit."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "planner", "model", name, "-o", str(Path(folder) / "profile.json")]
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - begin


def best_rows(sweep: Sweep, found: Sequence[Found]) -> list[dict[str, object]]:
    """Simulate the best and put both times side by side."""
    rows = []
    for choice, price in found:
        group = Group(choice.config.tensor, choice.sequence_parallel, choice.microbatch_size, choice.overlap)
        simulated_ns = sweep.prices(group).simulated_ns(choice)
        rows.append(
            {
                "configuration": str(choice),
                "step_time_ns": price.time_ns,
                "simulated_ns": simulated_ns,
                "difference_percent": 100 * (price.time_ns / simulated_ns - 1),
                "mfu": sweep.mfu(simulated_ns),
                "memory_bytes": price.memory_bytes,
                "memory_upper_bytes": price.upper_bytes,
            }
        )
    return rows


def report(body: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> None:
    """Print for people."""
    for key, value in body.items():
        print(f"{key:<22} {value:.4g}" if isinstance(value, float) else f"{key:<22} {value}")
    print("best: step time (closed form), simulated, difference, MFU, memory (upper bound)")
    for row in rows:
        step, simulated, less, mfu, memory, upper = (float(str(row[key])) for key in list(row)[1:])
        print(
            f"  {step / 1e9:.3f} s  {simulated / 1e9:.3f} s  {less:+.4f} %  {100 * mfu:.1f} %  {memory / GIB:.1f} "
            f"({upper / GIB:.1f}) GiB  {row['configuration']}"
        )


def main() -> None:
    """Sweep, time single prices and profiles, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, value in (("workers", 2), ("devices", 64), ("batch", 1536), ("largest-microbatch", 32)):
        parser.add_argument(f"--{flag}", type=int, default=value)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    sweep = Sweep.of(args.devices, args.batch, args.largest_microbatch)
    total, seconds = run(sweep, args.workers)
    rows = best_rows(sweep, total.best)
    body: dict[str, object] = {
        "configurations": total.num_priced,
        "seconds": seconds,
        "per_second": total.num_priced / seconds,
        "cpu_seconds": total.cpu_seconds,
        "per_cpu_second": total.num_priced / total.cpu_seconds,
        "workers": args.workers,
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "fit": total.num_fit,
        "fit_upper": total.num_fit_upper,
        "refused_by_host": total.num_refused,
        "warm_ms": 1e3 * median(total.seconds),
        "cold_ms": 1e3 * median(cold_seconds(sweep)),
        **{f"model_{name}_s": described_seconds(name) for name in PROFILED},
    }
    if args.json:
        print(json.dumps({**body, "best": rows}))
    else:
        report(body, rows)


if __name__ == "__main__":
    main()
