"""``penstock plan`` without flags, from 4 to 1,024 devices: wall time and memory of the whole command, gap, throughput.

    python -m benchmarks.scale [--models M,...] [--devices 4,8,16,32,128,1024] [--time-limit 10] [-o FILE.jsonl]

Models are described, or captured without times, and priced for H100; the batch is 8 samples a device, so that
throughput should not fall when devices are added. Each row is one command in a process of its own. Marked are rows
above 30 s or 2 GiB, gaps above the aim (5 % for Llama, 15 for uno, 10 for others), and throughput below that of fewer
devices. Leaves out whether a flag would do better (`benchmarks.default_plan`).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.support.kept_rows import add_output, kept

MODELS = (
    *("zoo:mmt", "zoo:uno", "zoo:uno21", "zoo:dlrm", "zoo:dlrm26", "zoo:unet3d", "zoo:yolo", "zoo:inception", "nasnet"),
    *("llama3-8b", "llama3-70b", "llama3-405b", "deepseek-v3", "random:2000:1", "random:2000:2"),
)
DEVICES = (4, 8, 16, 32, 128, 1024)
SAMPLES_A_DEVICE = 8
SECONDS, GIB = 30.0, 2.0
AIMS = {"llama3-8b": 0.05, "llama3-70b": 0.05, "llama3-405b": 0.05, "zoo:uno": 0.15, "zoo:uno21": 0.15}
AIM = 0.1


def command(*words: str) -> tuple[dict[str, Any], float, float]:
    """Return the answer of a whole command, its seconds, and the most memory that it or a process of its held, GiB."""
    start = time.perf_counter()
    told = subprocess.run(
        [sys.executable, "-m", "planner", *words, "--json"], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    return json.loads(told.stdout), seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def row_of(profile: Path, model: str, devices: int, limit: float) -> dict[str, Any]:
    """Return one row, measured by a process of its own, whose largest child the command is."""
    words = [sys.executable, "-m", "benchmarks.scale", "--one", str(profile), str(devices), str(limit)]
    told = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return {"model": model, "devices": devices, **told}


def measured(profile: Path, devices: int, limit: float) -> dict[str, Any]:
    """Plan, and return what is to be known of it."""
    answer, seconds, gib = command(
        "plan", str(profile), "--devices", str(devices), "--batch", str(SAMPLES_A_DEVICE * devices),
        "--time-limit", str(limit), "-o", str(profile.with_name("plan.json")),
    )  # fmt: skip
    names = ("strategy", "best_step_time_ns", "samples_per_s", "gap", "error")
    return {name: answer[name] for name in names if name in answer} | {
        "seconds": round(seconds, 2),
        "gib": round(gib, 2),
    }


def marks(row: dict[str, Any], fastest: float) -> list[str]:
    """Return where a row misses its aims."""
    found = [text for text, over in (("slow", row["seconds"] > SECONDS), ("large", row["gib"] > GIB)) if over]
    if "error" in row:
        return [*found, row["error"][:90]]
    gap = row["gap"]
    if gap is None or gap > AIMS.get(row["model"], AIM):
        found.append("gap")
    if SAMPLES_A_DEVICE * row["devices"] / row["best_step_time_ns"] < fastest:
        found.append("falls")
    return found


def text_of(row: dict[str, Any]) -> str:
    """Return a row for people."""
    gap = f"{100 * row['gap']:6.2f} %" if row.get("gap") is not None else "       -"
    step_ms = row.get("best_step_time_ns", 0) / 1e6
    return (
        f"{row['model']:14} {row['devices']:5} {step_ms:12.2f} ms {gap} {row['seconds']:6.1f} s {row['gib']:5.2f} GiB  "
        f"{row.get('strategy', '-'):40} {', '.join(row['marks'])}"
    )


def rows(models: Sequence[str], devices: Sequence[int], time_limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each model on each number of devices, with what is wrong with it."""
    with TemporaryDirectory() as folder:
        for model in models:
            profile, fastest = Path(folder) / "profile.json", 0.0
            command("model", model, "--microbatch-sizes", "1,2,4,8", "-o", str(profile))
            for number in devices:
                row = row_of(profile, model, number, time_limit_s)
                row["marks"], row["load"] = marks(row, fastest), round(os.getloadavg()[0], 1)
                if "error" not in row:
                    fastest = max(fastest, SAMPLES_A_DEVICE * number / row["best_step_time_ns"])
                yield row


def main() -> int:
    """Print a table; exit 1 where a row takes too long, holds too much, or falls behind fewer devices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)))
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="S")
    add_output(parser)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(Path(args.one[0]), int(args.one[1]), float(args.one[2]))))
        return 0
    missed = 0
    for row in kept(
        rows(args.models.split(","), list(map(int, args.devices.split(","))), args.time_limit), args.output
    ):
        missed += bool({"slow", "large", "falls"}.intersection(row["marks"]))
        print(text_of(row), flush=True)
    print(f"{missed} rows too slow, too large or behind fewer devices")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
