"""What running branches at once gains, measured: the graph plan against the chain plan on two ranks, no emulation.

    python -m benchmarks.graph_gain [--halves] [--models M,...] [--rounds 3] [--steps 15] [--json]

A branching model is cut into stages for four devices, once freely and once in one line (`plan --planner chain`: a
tensor passes through every stage between its producer and its last reader). Either side's stages are placed on two
ranks; all placements that use both and a few schedules are simulated, and the best predicted of each side runs. Both
run in the same processes, step by step in turn. The gain is the chain's step time over the graph's, less one.

With `--halves` the stages are the graph plan's on both sides: split backwards (`graph-zb`) against whole ones
(`graph-1f1b`), each placed as predicted best. What halves cost more is measured by the profile and in the prediction.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.support.steps_in_turn import reordered, run_in_turn
from costmodel.errors import NoPlanFits, UsageError
from examples.commands import penstock
from planner.plan import Plan, read_plan, write_plan

MICROBATCH = {"zoo:case-study:small": 4, "zoo:mmt:small": 2, "zoo:uno:small": 32}
"""Model -> micro-batch size that makes actions last some milliseconds."""

STAGES, RANKS = 4, 2
PLANNED_MICROBATCHES = 16
"""The cut is made for so many, which keeps it in four even stages; few then run, where a line waits most."""

SCHEDULES = ("graph-1f1b", "graph-eager-1f1b", "interleaved-1f1b", "looped-bfs")
"""What either side may use; the last two need stage s on rank s mod 2."""
HALVES = {"halves": ("graph-zb",), "whole": ("graph-1f1b",)}
"""What the sides use with `--halves`."""


def main() -> None:
    """Measure and print one row a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MICROBATCH))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15, help="steps of each plan in a round (15)")
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--halves", action="store_true", help="split backwards against whole ones")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        tried = [measure(m, Path(name), args) for m in args.models.split(",")]
    rows, skipped = ([row for row in tried if ("skipped" in row) == flag] for flag in (False, True))
    answer = {"rows": rows, "skipped": skipped, "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    print(json.dumps(answer) if args.json else "\n".join(lines(answer)))


def measure(model: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return predicted and measured gain of one model."""
    rounds = []
    for number in range(args.rounds):
        print(f"{model}: round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        try:
            rounds.append(one_round(model, folder, args.microbatches, args.steps, halves=args.halves))
        except NoPlanFits as error:
            print(f"{model}: {error}", file=sys.stderr, flush=True)
    if not rounds:
        return {"model": model, "skipped": "no round found a plan of enough stages"}
    predicted, measured = (statistics.median(row[key] for row in rounds) for key in ("predicted", "measured"))
    return {
        "model": model,
        "microbatch_size": MICROBATCH.get(model, 2),
        "microbatches": args.microbatches,
        "predicted_gain_percent": predicted,
        "measured_gain_percent": measured,
        "share_of_predicted": measured / predicted if predicted else None,
        "rounds": rounds,
    }


def one_round(model: str, folder: Path, num_microbatches: int, num_steps: int, *, halves: bool) -> dict[str, Any]:
    """Profile, plan both sides, place them and run them in turn; the first side is the one that is to gain."""
    profile, size = folder / "profile.json", MICROBATCH.get(model, 2)
    penstock("profile", model, "-o", profile, "--microbatch-sizes", size)
    sides = dict.fromkeys(HALVES, "ours") if halves else {"graph": "ours", "chain": "chain"}
    plans, files = {}, []
    for side, planner in sides.items():
        found = folder / f"{side}.json"
        words = ("--batch", size * PLANNED_MICROBATCHES, "--microbatch-size", size, "--time-limit", 5, "-o", found)
        whole = ("--schedule", "graph-auto", "--chunks", 1, "--data", 1)
        penstock("plan", profile, "--devices", STAGES, "--planner", planner, *whole, *words)
        plans[side] = best_placed(read_plan(found), num_microbatches, HALVES.get(side, SCHEDULES))
        files.append(folder / f"{side}-placed.json")
        write_plan(files[-1], plans[side])
    ran = run_in_turn(files, model, num_steps)
    measured = {side: statistics.median(row) for side, row in zip(plans, ran, strict=True)}
    times = {side: plan.prediction.step_time_ns for side, plan in plans.items()}
    first, second = plans
    return {
        "predicted": 100 * (times[second] / times[first] - 1),
        "measured": 100 * (measured[second] / measured[first] - 1),
        "predicted_ns": times,
        "measured_ns": measured,
        "placement": {side: [stage.ranks[0] for stage in plan.stages] for side, plan in plans.items()},
        "schedule": {side: plan.schedule for side, plan in plans.items()},
    }


def best_placed(plan: Plan, num_microbatches: int, schedules: Sequence[str]) -> Plan:
    """Return the stages on two ranks, placed and ordered as the simulator likes best."""
    if len(plan.stages) < STAGES:
        raise NoPlanFits(f"the plan found has {len(plan.stages)} stages, {STAGES} are compared")
    return min(candidates(plan, num_microbatches, schedules), key=lambda made: made.prediction.step_time_ns)


def candidates(plan: Plan, num_microbatches: int, schedules: Sequence[str]) -> Iterator[Plan]:
    """Yield every placement (the first stage on rank 0) under every schedule that takes it."""
    for rest in product(range(RANKS), repeat=len(plan.stages) - 1):
        if any(rest):
            for schedule in schedules:
                try:
                    yield reordered(plan, schedule, (0, *rest), num_microbatches)
                except UsageError:
                    continue  # the schedule does not run on this placement


def lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the answer for people."""
    for row in answer["rows"]:
        gains = f"gain predicted {row['predicted_gain_percent']:.1f} %, measured {row['measured_gain_percent']:.1f} %"
        yield f"{row['model']:<22} {gains}   ({row['microbatches']} micro-batches of {row['microbatch_size']})"
        for found in row["rounds"]:
            for side in found["schedule"]:
                times = f"{found['predicted_ns'][side] / 1e6:.1f} / {found['measured_ns'][side] / 1e6:.1f} ms"
                how = f"{found['schedule'][side]}, stages on ranks {found['placement'][side]}"
                yield f"    {side}: predicted / measured {times}, {how}"
    for row in answer["skipped"]:
        yield f"{row['model']:<22} skipped: {row['skipped']}"
    yield f"two ranks, one thread each; {answer['cores']} cores, load average {answer['load_average']:.2f}"


if __name__ == "__main__":
    main()
