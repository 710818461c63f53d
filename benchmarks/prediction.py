"""Predicted against measured step time: plans of two stages on two ranks, one thread each.

    python -m benchmarks.prediction [--models zoo:mmt:small,zoo:uno:small,zoo:gpt:small] [--repeats 3]

Each model is profiled once; its plan is run `repeats` times, and the median over the runs of each run's
median step is held against the prediction. Nothing else should use the two cores meanwhile: the load is printed.
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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(model, Path(folder), args.repeats) for model in args.models.split(",")]
    answer = {"rows": rows, "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    if args.json:
        print(json.dumps(answer))
        return
    for row in rows:
        times = [f"{row[key] / 1e6:8.2f} ms" for key in ("predicted_ns", "measured_ns")]
        runs = [round(ns / 1e6, 2) for ns in row["runs_ns"]]
        error = f"{row['error_percent']:+6.1f} %"
        print(f"{row['model']:<16} predicted {times[0]}  measured {times[1]}  error {error}  runs {runs}")
    print(f"{answer['cores']} cores, load average {answer['load_average']:.2f}")


def measure(model: str, folder: Path, repeats: int) -> dict[str, Any]:
    """Profile, plan and run one model; return predicted and measured step time."""
    profile, plan = folder / "profile.json", folder / "plan.json"
    penstock("profile", model, "-o", profile, "--microbatch-sizes", MICROBATCH)
    words = ("--devices", 2, "--batch", BATCH, "--microbatch-size", MICROBATCH, "-o", plan)
    predicted = penstock("plan", profile, *words)["step_time_ns"]
    runs = [torchrun(2, plan, "--model", model, "--steps", STEPS)["step_time_ns"] for _ in range(repeats)]
    measured = round(statistics.median(runs))
    return {
        "model": model,
        "predicted_ns": predicted,
        "measured_ns": measured,
        "error_percent": 100 * (predicted - measured) / measured,
        "runs_ns": runs,
    }


if __name__ == "__main__":
    main()
