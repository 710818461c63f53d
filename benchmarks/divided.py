"""Stages that divide parameters (ZeRO-2 and 3), as a plan says and as they run: collectives, bytes and peak memory.

    python -m benchmarks.divided [--models zoo:gpt:small,...] [--only REGEX] [--estimated] [--json]

Each model is profiled on this CPU, planned for four devices under each of `CHOICES` and run on four gloo ranks, one
thread each. With `--estimated` it is captured by `penstock model`, not run, and its profile is taken for this CPU's: of
a captured model's prices collectives, bytes and memory are held against the run. Collectives and their bytes are
counted where torch hands them to the process group, the whole third step. Memory is that of all tensors which are alive
in a rank at once, seen after each operator of that step; the plan's is its `peak_memory_bytes`. The first rank of each
place is shown. Leaves out times: four ranks share two cores.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from costmodel.capture.models import load_model
from costmodel.model.origin import Origin
from costmodel.model.profile import read_profile, write_profile
from costmodel.profiling.device import describe_device
from executor import Pipeline
from executor.gradients.optimizer import timing_optimizer
from planner.plan import read_plan
from tests.support.ranks.live_tensors import LiveTensors
from tests.support.ranks.parallel_jobs import Counting, planned_collectives
from tests.support.ranks.rank_pool import RankPool

MODELS = "zoo:gpt:small,zoo:llama3:small,zoo:t5:small"
CHOICES = (
    "--data 4 --zero 3", "--data 4 --zero 2", "--data 4 --zero 3 --shard-group 2", "--data 4 --zero 2 --shard-group 2",
    "--data 2 --stages 2 --chunks 1 --zero 3",
    "--data 2 --stages 2 --chunks 1 --zero 2", "--data 2 --stages 2 --zero 3 --schedule zb-h1",
    "--data 2 --stages 2 --zero 2 --schedule zb-h1",
    "--tensor 2 --stages 2 --chunks 1", "--tensor 2 --data 2 --zero 3", "--tensor 2 --stages 2 --recompute full",
)  # fmt: skip
RANKS = 4


def main() -> None:
    """Measure and print a row a model and choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--only", default="", metavar="REGEX", help="choices that match")
    parser.add_argument("--estimated", action="store_true", help="plan from captured models' prices")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    choices = [choice for choice in CHOICES if re.search(args.only, choice)]
    rows = list(measure(args.models.split(","), choices, args.estimated))
    if args.json:
        print(json.dumps({"rows": rows, "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}))
        return
    for row in rows:
        same = "as planned" if row["counted"] == row["planned"] else f"{row['counted']}, planned {row['planned']}"
        print(
            f"{row['model']:<18} {row['choice']:<42} ranks {row['ranks']}: collectives {same}; peak "
            f"{row['peak_bytes'] / 1e6:.2f} MB, planned {row['planned_bytes'] / row['peak_bytes'] - 1:+.1%}"
        )
    print(f"one step each, {RANKS} ranks, one thread a rank, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")


def measure(models: list[str], choices: list[str], estimated: bool) -> Iterator[dict[str, Any]]:
    """Yield a row a model, choice and stage."""
    made = ("--precision", "fp32") if estimated else ("--repeats", "3", "--no-links")
    command = "model" if estimated else "profile"
    pool = RankPool(RANKS)
    try:
        with tempfile.TemporaryDirectory() as folder:
            profile, plan = Path(folder, "profile.json"), Path(folder, "plan.json")
            for model in models:
                _command(command, model, "-o", profile, "--microbatch-sizes", "2", *made)
                if estimated:
                    as_of_this_cpu(profile)
                for choice in choices:
                    print(f"{model} {choice}", file=sys.stderr, flush=True)
                    fixed = [*choice.split(), "--batch", "16", "--microbatch-size", "2", "--devices", str(RANKS)]
                    _command("plan", profile, "-o", plan, "--deterministic-limit", "1", *fixed)
                    for row in _rows(pool.run(seen, plan=str(plan), model=model)):
                        yield {"model": model, "choice": choice, **row}
    finally:
        pool.close()


def as_of_this_cpu(path: Path) -> None:
    """Take a captured model's profile for one of this CPU, so that ranks of CPUs run its plans."""
    profile = read_profile(path)
    write_profile(path, replace(profile, device=describe_device(torch.device("cpu")), origin=Origin()))


def _command(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "planner", *map(str, words)], check=True, capture_output=True)


def _rows(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what the first of the ranks of each place have seen, and whether the others have seen the same."""
    for row in found:
        if row["ranks"][0] == row["rank"]:
            alike = all(found[rank]["counted"] == row["counted"] for rank in row["ranks"])
            yield {**row, "counted": row["counted"] if alike else "unlike on the ranks"}


def seen(plan: str, model: str) -> dict[str, Any]:
    """Run three steps on this rank; return what the third sends and holds, beside what the plan says."""
    read = read_plan(plan)
    with Pipeline(read, load_model(model, read.batch.global_size), optimizer=timing_optimizer(read)) as pipe:
        pipe.step()
        pipe.step()
        with LiveTensors.of(pipe) as live, Counting() as counting:
            pipe.step()
    return {
        "rank": pipe.rank,
        "ranks": list(next(stage.ranks for stage in read.stages if pipe.rank in stage.ranks)),
        "counted": counting.found,
        "planned": planned_collectives(read, pipe.rank),
        "peak_bytes": live.peak,
        "planned_bytes": read.prediction.peak_memory_bytes[pipe.rank],
    }


if __name__ == "__main__":
    main()
