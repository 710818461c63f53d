"""Every planner on the same models with the same time: simulated step, search, memory, depth.

    python -m benchmarks.rivals [--models M,...] [--devices 4,8,16,32] [--planners P,...] [--seconds 5] [-o FILE.jsonl]

Each row is one planner's answer, checked by the independent checker: its best step by the simulator that judges all,
its ratio to ours, the seconds that its search took, the peak of any rank, the stages on its longest path, or in its own
words why it has none. Models that no machine here ran are priced for H100; a sample's batch is 8 a device. Exit 1 where
a rival's best step is below ours with the same seconds. Leaves out what a rival's own code would choose.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx

from benchmarks.default_plan import profile_of
from costmodel.errors import NoPlanFits, UsageError
from planner import Effort, Plan, Problem, make_plan
from planner.search.planners import PLANNERS

MODELS = ("zoo:mmt", "zoo:uno", "zoo:dlrm", "zoo:unet3d", "zoo:gpt", "llama3-8b")
SAMPLES_A_DEVICE = 8


def rows(models: list[str], devices: list[int], planners: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield one row a planner, ours first."""
    for model in models:
        for count in devices:
            ours_ns = 0
            for planner in planners:
                row = {"model": model, "devices": count, "planner": planner, **answer(model, count, planner, seconds)}
                best_ns = row.get("best_step_time_ns", 0)
                ours_ns = best_ns if planner == "ours" else ours_ns
                if ours_ns and best_ns:
                    row["over_ours"] = round(best_ns / ours_ns, 4)
                yield row


def answer(model: str, devices: int, planner: str, seconds: float) -> dict[str, Any]:
    """Return what one planner comes to."""
    profile = profile_of(model)
    problem = Problem(
        profile, None, devices, SAMPLES_A_DEVICE * devices, planner=planner, target="any", effort=Effort(seconds)
    )
    start = time.perf_counter()
    try:
        made = make_plan(problem)
    except (NoPlanFits, UsageError) as error:
        return {"refused": str(error), "seconds": round(time.perf_counter() - start, 2)}
    plan = made.plan
    return {
        "best_step_time_ns": plan.search.best_step_time_ns,
        "seconds": round(time.perf_counter() - start, 2),
        "peak_memory_gib": round(max(plan.prediction.peak_memory_bytes) / 2**30, 2),
        "depth": depth(plan),
        "stages": len(plan.stages),
        "strategy": made.to_json()["strategy"],
    }


def depth(plan: Plan) -> int:
    """Return how many stages stand on the longest path of the stage graph."""
    graph = nx.DiGraph([(edge.source, edge.target) for edge in plan.edges])
    return 1 + nx.dag_longest_path_length(graph, weight=None) if plan.edges else 1


def main() -> int:
    """Print a table; exit 1 where a rival is faster than ours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--devices", default="4,8,16,32")
    parser.add_argument("--planners", default=",".join(PLANNERS))
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each planner (5)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.jsonl", help="keep the rows there, at once")
    args = parser.parse_args()
    beaten = 0
    devices = [int(text) for text in args.devices.split(",")]
    for row in rows(args.models.split(","), devices, args.planners.split(","), args.seconds):
        beaten += row.get("over_ours", 1.0) < 1
        text = row.get("refused") or (
            f"{row['best_step_time_ns'] / 1e6:10.3f} ms  {row.get('over_ours', 0):6.3f}  {row['seconds']:5.1f} s  "
            f"{row['peak_memory_gib']:6.2f} GiB  depth {row['depth']:2} of {row['stages']:2}  {row['strategy']}"
        )
        print(f"{row['model']:12} {row['devices']:3}  {row['planner']:17} {text}", flush=True)
        if args.output:
            with args.output.open("a") as file:
                print(json.dumps(row), file=file, flush=True)
    print(f"ours beaten in {beaten} rows")
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())
