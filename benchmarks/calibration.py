"""Whether one measured run makes the prediction of another plan better: six models, two ranks, one thread each.

    python -m benchmarks.calibration [--models zoo:mmt:small,zoo:gpt:small] [--steps 12] [--json]

A model is profiled and planned as two equal stages (A) and as two of which the first has a third of the work, under
another schedule (B). Both run in the same processes, step by step in turn, because a shared machine's speed drifts.
``penstock calibrate`` moves the profile to the timeline of A's median step; B is priced with the profile as it was and
as it is moved, and held against its own median step. Nothing else should use the cores.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.prediction.emulated import stages_of
from benchmarks.prediction.jobs import MICROBATCH, MICROBATCHES
from benchmarks.support.steps_in_turn import run_in_turn
from costmodel.model.profile import read_profile
from examples.commands import penstock
from planner.candidate.reprice import repriced
from planner.plan import read_plan
from planner.plan.replay import replay

PLANS = {"a": ((1, 1), "graph-1f1b"), "b": ((1, 2), "gpipe")}
"""Shares of the work that stages get, and the schedule."""


def main() -> None:
    """Measure and print one row a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MICROBATCH))
    parser.add_argument("--steps", type=int, default=12, help="steps of each run (12)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = [measure(model, Path(name), args.steps) for model in args.models.split(",")]
    answer = {
        "rows": rows,
        "better": sum(abs(row["after_percent"]) < abs(row["before_percent"]) for row in rows),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    print(
        json.dumps(answer)
        if args.json
        else "\n".join([*map(_line, rows), f"better: {answer['better']} of {len(rows)}"])
    )


def measure(model: str, folder: Path, num_steps: int) -> dict[str, Any]:
    """Return the errors of plan B before and after the profile was moved to a run of plan A, and those of A."""
    print(model, file=sys.stderr, flush=True)
    files = {name: folder / f"{name}.json" for name in ("profile", "moved", "a", "b", "run")}
    size = MICROBATCH.get(model, 2)
    penstock("profile", model, "-o", files["profile"], "--microbatch-sizes", size)
    profile = read_profile(files["profile"])
    for name, (shares, schedule) in PLANS.items():
        pins = folder / "pins.toml"
        pins.write_text(stages_of(profile, shares))
        words = ("--batch", size * MICROBATCHES, "--microbatch-size", size, "--pin", pins, "--schedule", schedule)
        penstock("plan", files["profile"], "--devices", 2, *words, "-o", files[name])
    _, steps = run_in_turn([files["a"], files["b"]], model, num_steps, timeline=files["run"])
    measured_ns = round(statistics.median(steps))
    of_a = penstock(
        "calibrate", files["a"], "--measured", files["run"], "--profile", files["profile"], "-o", files["moved"]
    )
    plan = read_plan(files["b"])
    before, after = (
        100 * (replay(repriced(plan, read_profile(files[name]))).step_time_ns / measured_ns - 1)
        for name in ("profile", "moved")
    )
    errors = {f"run_{side}_percent": of_a[side]["error_percent"] for side in ("before", "after")}
    return {"model": model, "before_percent": before, "after_percent": after, "step_time_ns": measured_ns, **errors}


def _line(row: Mapping[str, Any]) -> str:
    of_run = f"of the run itself {row['run_before_percent']:+.1f} and {row['run_after_percent']:+.1f} %"
    return f"{row['model']:<16} {row['before_percent']:+6.1f} % -> {row['after_percent']:+6.1f} %   ({of_run})"


if __name__ == "__main__":
    main()
