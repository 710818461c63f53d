"""Predicted against measured step time: plans of two stages on two ranks, one thread each.

    python -m benchmarks.prediction [--models zoo:mmt:small,zoo:uno:small,zoo:gpt:small] [--rounds 3]

A round profiles the model, plans it and runs the plan, right after each other, because the speed of a shared machine
drifts; the median error over the rounds is what counts. Nothing else should use the cores: the load is printed.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from examples.commands import penstock, torchrun

MODELS = "zoo:mmt:small,zoo:uno:small,zoo:gpt:small"
BATCH, MICROBATCH, STEPS = 16, 2, 12


def main() -> None:
    """Measure and print one row a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(model, Path(folder), args.rounds) for model in args.models.split(",")]
    answer = {"rows": rows, "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    if args.json:
        print(json.dumps(answer))
        return
    for row in rows:
        print(f"{row['model']:<16} median error {row['error_percent']:+6.1f} %   predicted / measured in ms, by round:")
        print("   " + ",  ".join(f"{p / 1e6:.1f} / {m / 1e6:.1f}" for p, m in row["rounds"]))
    print(f"{answer['cores']} cores, load average {answer['load_average']:.2f}")


def measure(model: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Return predicted and measured step time of one model, round by round."""
    found = [one_round(model, folder) for _ in range(rounds)]
    errors = [100 * (predicted - measured) / measured for predicted, measured in found]
    return {"model": model, "error_percent": statistics.median(errors), "errors": errors, "rounds": found}


def one_round(model: str, folder: Path) -> tuple[int, int]:
    """Profile, plan and run; return predicted and measured step time in ns."""
    profile, plan = folder / "profile.json", folder / "plan.json"
    penstock("profile", model, "-o", profile, "--microbatch-sizes", MICROBATCH)
    words = ("--devices", 2, "--batch", BATCH, "--microbatch-size", MICROBATCH, "--time-limit", 3, "-o", plan)
    predicted: int = penstock("plan", profile, *words)["step_time_ns"]
    measured: int = torchrun(2, plan, "--model", model, "--steps", STEPS)["step_time_ns"]
    return predicted, measured


if __name__ == "__main__":
    main()
