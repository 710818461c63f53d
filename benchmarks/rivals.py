"""Every planner on the same models with the same time: simulated step, search, memory, depth.

    python -m benchmarks.rivals [--models M,...] [--devices 4,8,16,32] [--planners P,...] [--seconds 5] [-o FILE.jsonl]
    python -m benchmarks.rivals --cluster benchmarks/graphpipe_cluster.toml --devices 32 --microbatch-size 8 --seconds 2

Each row is one planner's answer, checked by the independent checker: its best step by the simulator that judges all,
its ratio to ours, the seconds that its search took, the peak of any rank, the stages on its longest path, or in its own
words why it has none. Models are priced for H100, or for the first device of the cluster that is given; the batch is 8
micro-batches of the size that is fixed, or 8 samples, a device. Exit 1 where a rival's best step is below ours with the
same seconds. Leaves out what a rival's own code would choose.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from benchmarks.default_plan import profile_of
from benchmarks.support.kept_rows import add_output, kept
from costmodel.architectures.command import DEFAULT_DEVICE
from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines.cluster import Cluster, read_cluster
from costmodel.model.profile import Profile
from planner import Effort, Plan, Problem, Space, make_plan
from planner.search.planners import PLANNERS

MODELS = ("zoo:mmt", "zoo:uno", "zoo:dlrm", "zoo:unet3d", "zoo:gpt", "llama3-8b")
SAMPLES_A_DEVICE = 8


@dataclass(frozen=True)
class Asked:
    """What all planners are asked alike: `seconds` of each or counted work, a cluster, and choices where given."""

    seconds: float
    cluster: Cluster | None = None
    microbatch_size: int | None = None
    samples_a_device: int = SAMPLES_A_DEVICE
    space: Space = field(default_factory=Space)
    optimizer: str = "adam"
    deterministic_limit: float | None = None

    @property
    def device(self) -> str:
        """The catalogue's name of the device that models are priced for."""
        return (self.cluster.devices[0].catalogue if self.cluster else "") or DEFAULT_DEVICE


def rows(models: list[str], devices: list[int], planners: list[str], asked: Asked) -> Iterator[dict[str, Any]]:
    """Yield one row a planner, ours first."""
    for model in models:
        for count in devices:
            ours_ns = 0
            for planner in planners:
                found = answer(profile_of(model, asked.device), count, planner, asked)
                row = {"model": model, "devices": count, "planner": planner, **found}
                best_ns = row.get("best_step_time_ns", 0)
                ours_ns = best_ns if planner == "ours" else ours_ns
                if ours_ns and best_ns:
                    row["over_ours"] = round(best_ns / ours_ns, 4)
                yield row


def answer(profile: Profile, devices: int, planner: str, asked: Asked) -> dict[str, Any]:
    """Return what one planner comes to."""
    size = asked.microbatch_size
    problem = Problem(
        profile, asked.cluster, devices, asked.samples_a_device * devices * (size or 1), microbatch_size=size,
        planner=planner, target="any", optimizer=asked.optimizer, space=asked.space,
        effort=Effort(asked.seconds, asked.deterministic_limit),
    )  # fmt: skip
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
        "schedule": plan.schedule,
        "microbatch_size": plan.batch.microbatch_size,
        "gap": plan.search.gap,
        "model_gap": plan.search.model_gap,
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
    parser.add_argument("--cluster", metavar="FILE", help="cluster file (default: a typical host of the device)")
    parser.add_argument("--microbatch-size", type=int, metavar="b", help="fix it (default: search)")
    add_output(parser)
    args = parser.parse_args()
    beaten = 0
    devices = [int(text) for text in args.devices.split(",")]
    asked = Asked(args.seconds, read_cluster(args.cluster) if args.cluster else None, args.microbatch_size)
    print(f"load {os.getloadavg()[0]:.1f}, {asked.device}, {args.seconds:g} s each")
    for row in kept(rows(args.models.split(","), devices, args.planners.split(","), asked), args.output):
        beaten += row.get("over_ours", 1.0) < 1
        text = row.get("refused") or (
            f"{row['best_step_time_ns'] / 1e6:10.3f} ms  {row.get('over_ours', 0):6.3f}  {row['seconds']:5.1f} s  "
            f"{row['peak_memory_gib']:6.2f} GiB  depth {row['depth']:2} of {row['stages']:2}  {row['strategy']}"
        )
        print(f"{row['model']:12} {row['devices']:3}  {row['planner']:17} {text}", flush=True)
    print(f"ours beaten in {beaten} rows")
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())
