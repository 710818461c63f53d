"""Every legal configuration of GPT-3 175B on 64 A100s priced: how many a second, how many fit, which are the best.

    python -m benchmarks.sweep [--workers 2] [--devices 64] [--batch 1536] [--largest-microbatch 32] [--json]

Configurations are those of `benchmarks.sweep.choices`, each priced once (`benchmarks.sweep.prices`: time in closed
form, memory term by term) with Adam in bf16; hosts of eight joined by NVLink 3, one 200 Gbit/s card a device, 2,048
tokens a sample. The best ten of those whose upper bound of memory fits are simulated. Beside that: one configuration
with nothing priced before (a new cost model each time) and within the sweep, and `penstock model` as a whole command.
`cpu_seconds` are those of all workers; on a machine at rest the sweep takes them over the number of workers.
Others on one core: calculon about 220 configurations a second, llm-analysis 0.55 ms one without any bubble (both timed
beforehand, not by this command).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.sweep.choices import Group, choices, groups
from benchmarks.sweep.pricing import Found, Sweep, run
from costmodel.machines.cluster_parts import GIB

PROFILED = ("llama3-70b", "deepseek-v3")
COLD = 50


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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
