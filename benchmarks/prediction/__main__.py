"""Predicted against measured step time: six models under three schedules, two ranks, one thread each.

    python -m benchmarks.prediction [--models zoo:mmt:small,zoo:gpt:small] [--rounds 24] [--repeats 3] [--json]
    python -m benchmarks.prediction --emulate [--ranks 4,8,16]

A repeat profiles the model, plans it and puts the plan's stages under each schedule; then rounds of profiling and steps
of all plans take turns in the same processes (`benchmarks.prediction.profiled_in_turn`), because the speed of a shared
machine drifts, and the medians of both sides count. The micro-batches are large enough that an action takes some 10 ms.
With `--emulate` ranks hold each action for its planned time, so that plans of more ranks than cores are checked: what
is left then is order, messages and Python. Nothing else should use the cores: the load is printed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.prediction.emulated import emulate
from benchmarks.prediction.jobs import MICROBATCH, MICROBATCHES
from benchmarks.prediction.profiled_in_turn import take_turns
from benchmarks.support.steps_in_turn import reordered
from costmodel.model.profile import read_profile
from costmodel.stages.costs import at
from examples.commands import penstock
from planner.candidate.reprice import repriced
from planner.plan import Plan, read_plan, write_plan
from planner.plan.replay import replay

SCHEDULES = ("gpipe", "graph-1f1b", "zb-h1")
TELLING = 0.05
"""Two schedules further apart than this should be predicted in their right order."""


def main() -> None:
    """Measure and print one row a model and schedule."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prediction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default=",".join(MICROBATCH))
    parser.add_argument("--rounds", type=int, default=24, help="turns of profiling and steps in a repeat (24)")
    parser.add_argument("--repeats", type=int, default=1, help="of everything (1)")
    parser.add_argument("--steps", type=int, default=12, help="of each emulated plan (12)")
    parser.add_argument("--emulate", action="store_true", help="hold each action for its planned time")
    parser.add_argument("--ranks", default="4,8,16", help="of the emulated plans")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if args.emulate:
            rows = emulate([int(n) for n in args.ranks.split(",")], SCHEDULES, Path(name), args.steps)
        else:
            rows = [row for m in args.models.split(",") for row in measure(m, Path(name), args.repeats, args.rounds)]
    answer = {"rows": rows, **summary(rows), "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    print(json.dumps(answer) if args.json else "\n".join(lines(answer)))


def measure(model: str, folder: Path, num_repeats: int, num_rounds: int) -> list[dict[str, Any]]:
    """Return a row a schedule: predicted and measured step times, repeat by repeat."""
    repeats = []
    for number in range(num_repeats):
        print(f"{model}: repeat {number + 1} of {num_repeats}", file=sys.stderr, flush=True)
        repeats.append(one_repeat(model, folder, num_rounds))
    rows = []
    for index, schedule in enumerate(SCHEDULES):
        pairs = [pair[index] for _, pair in repeats]
        errors = [100 * (predicted - measured) / measured for predicted, measured in pairs]
        row = {"model": model, "schedule": schedule, "error_percent": statistics.median(errors), "errors": errors}
        sizes = {"microbatch_size": MICROBATCH.get(model, 2), "shortest_forward_ms": repeats[-1][0]}
        rows.append({**row, **sizes, "rounds": pairs})
    return rows


def one_repeat(model: str, folder: Path, num_rounds: int) -> tuple[float, list[tuple[int, int]]]:
    """Profile and run by turns; return the shortest forward in ms, and (predicted, measured) ns of each schedule."""
    profile, found = folder / "profile.json", folder / "plan.json"
    size = MICROBATCH.get(model, 2)
    penstock("profile", model, "-o", profile, "--microbatch-sizes", size, "--repeats", 3)
    words = ("--batch", size * MICROBATCHES, "--microbatch-size", size, "--time-limit", 3, "-o", found)
    penstock("plan", profile, "--devices", 2, "--stages", 2, "--chunks", 1, "--schedule", "graph-1f1b", *words)
    plan = read_plan(found)
    files = [folder / f"{schedule}.json" for schedule in SCHEDULES]
    plans = [reordered(plan, schedule) for schedule in SCHEDULES]
    for file, made in zip(files, plans, strict=True):
        write_plan(file, made)
    turns = take_turns(files, model, num_rounds)
    taken = turns.profile(read_profile(profile))
    predicted = [replay(repriced(made, taken)).step_time_ns for made in plans]
    return shortest_forward_ms(plan), [(ns, turns.step_ns(index)) for index, ns in enumerate(predicted)]


def shortest_forward_ms(plan: Plan) -> float:
    """Return the forward of the quickest stage."""
    return min(at(stage.cost.forward_ns, 0) for stage in plan.stages) / 1e6


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and worst absolute error, also by repeat, and how many telling pairs of schedules are in order."""
    errors = [abs(row["error_percent"]) for row in rows]
    repeats = [[abs(error) for error in column] for column in zip(*(row["errors"] for row in rows), strict=True)]
    pairs = [right for model in dict.fromkeys(row["model"] for row in rows) for right in ordered(rows, model)]
    return {
        "mean_error_percent": statistics.mean(errors),
        "worst_error_percent": max(errors),
        "repeats": [{"mean_error_percent": statistics.mean(e), "worst_error_percent": max(e)} for e in repeats],
        "telling_pairs": len(pairs),
        "pairs_in_order": sum(pairs),
    }


def ordered(rows: Sequence[Mapping[str, Any]], model: str) -> Iterator[bool]:
    """Yield, for each two schedules of a model that differ tellingly, whether the prediction has their order."""
    mine = [row["rounds"] for row in rows if row["model"] == model]
    for first, second in combinations(mine, 2):
        predicted, measured = (
            statistics.median(a[side] / b[side] for a, b in zip(first, second, strict=True)) for side in (0, 1)
        )
        if abs(measured - 1) > TELLING:
            yield (predicted > 1) == (measured > 1)


def lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the answer for people."""
    for row in answer["rows"]:
        pairs = ",  ".join(f"{p / 1e6:.1f} / {m / 1e6:.1f}" for p, m in row["rounds"])
        size = f"{row['microbatch_size']} a micro-batch, forwards from {row['shortest_forward_ms']:.1f} ms"
        yield f"{row['model']:<16} {row['schedule']:<11} {row['error_percent']:+6.1f} %   {pairs} ms   ({size})"
    mean, worst = answer["mean_error_percent"], answer["worst_error_percent"]
    yield f"predicted / measured: mean error {mean:.1f} %, worst {worst:.1f} %"
    for number, each in enumerate(answer["repeats"]):
        mean, worst = each["mean_error_percent"], each["worst_error_percent"]
        yield f"repeat {number + 1}: mean error {mean:.1f} %, worst {worst:.1f} %"
    pairs = f"{answer['pairs_in_order']} of {answer['telling_pairs']} pairs of schedules"
    yield f"{pairs} that differ by more than 5 % are predicted in order"
    yield f"{answer['cores']} cores, load average {answer['load_average']:.2f}"


if __name__ == "__main__":
    main()
