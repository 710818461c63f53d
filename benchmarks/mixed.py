"""What it is worth to plan for a mixed cluster as it is: eight A100 and eight V100, a slow link between the hosts.

    python -m benchmarks.mixed [--only REGEX] [--seconds 20] [-o FILE.jsonl]

Each row is one model: the best plan of the mixed cluster, with the hosts in either order; the best of plans that ignore
the difference (made as if all 16 devices were A100, or V100, then priced where they truly run, on the better order of
the hosts); the best that uses one type alone. `ratio` is the better of those two over the worse of the mixed plans, and
is to be 1 or more; exit 1 where it is not, or a bound is above the plan. Times are estimates of catalogue devices.
Leaves out other clusters: `reliability --only mixed-clusters` draws small ones.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.support.kept_rows import add_output, kept
from costmodel.architectures.command import make
from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines import catalogue
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile
from planner import Effort, Plan, Problem, make_plan
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluator
from planner.graph.atoms import Atoms

A100, V100 = "a100-sxm-80", "v100-sxm3-32"
DEVICES_A_HOST, BATCH, SIZES = 8, 64, (1, 2, 4, 8)
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
MODELS = ("zoo:mmt", "zoo:uno", "zoo:yolo", "llama of 8 layers")


def profiles_of(model: str) -> dict[str, Profile]:
    """Return the profile of a model on either device, in the precision that both have."""
    with TemporaryDirectory() as folder:
        name = model if model.startswith("zoo:") else str(Path(folder, "llama.json"))
        if name != model:
            Path(name).write_text(json.dumps(LLAMA), encoding="utf-8")
        return {device: make(name, device, SIZES, precision="fp16")[0] for device in (A100, V100)}


def cluster_of(hosts: Sequence[str]) -> Cluster:
    """Return hosts of eight devices of these types, joined by 10 Gb/s."""
    types = tuple(DeviceType(name, catalogue.device(name).memory_bytes, "cuda", name) for name in dict.fromkeys(hosts))
    links = (LinkGroup("nvlink", DEVICES_A_HOST, 130.0, 7_000), LinkGroup("network", 0, 1.25, 20_000))
    return Cluster(types, tuple(Host(name, DEVICES_A_HOST) for name in hosts), links)


@dataclass(frozen=True)
class Job:
    """One model to be planned."""

    profiles: dict[str, Profile]
    seconds: float

    def problem(self, hosts: Sequence[str]) -> Problem:
        """Return the question for these hosts."""
        first, *others = (self.profiles[name] for name in sorted(set(hosts)))
        return Problem(
            first, cluster_of(hosts), DEVICES_A_HOST * len(hosts), BATCH, target="any", effort=Effort(self.seconds),
            other_profiles=tuple(others),
        )  # fmt: skip

    def plan(self, *hosts: str) -> Plan:
        """Return the plan for these hosts."""
        return make_plan(self.problem(hosts)).plan

    def ignoring_ns(self) -> int:
        """Return the step of the best plan that takes all devices for A100, or V100, where it truly runs."""
        orders = [self.problem(hosts) for hosts in ((A100, V100), (V100, A100))]
        plans = [self.plan(device, device) for device in (A100, V100)]
        return min(step for plan in plans for problem in orders for step in steps_on(problem, plan))


def steps_on(problem: Problem, plan: Plan) -> Iterator[int]:
    """Yield the step of a plan's stages, places and schedule on other machines, where that fits."""
    graph = problem.profile.graph
    pieces = Atoms(graph, tuple((i,) for i in range(len(graph.operators))))
    stage_of = {name: number for number, stage in enumerate(plan.stages) for name in stage.operators}
    partition = tuple(stage_of[operator.name] for operator in graph.operators)
    places = tuple(StagePlacement(stage.config, stage.ranks, stage.microbatch_multiple) for stage in plan.stages)
    for line in (False, True):
        candidate = Candidate(partition, places, plan.batch.microbatch_size, plan.schedule, line, plan.in_flight)
        try:
            found = Evaluator(problem, pieces, plan.batch.microbatch_size).evaluate(candidate)
        except (UsageError, NoPlanFits):
            continue
        if found.fits:
            yield found.step_time_ns


def row(model: str, seconds: float) -> dict[str, Any]:
    """Return what the searches of one model come to."""
    job = Job(profiles_of(model), seconds)
    mixed = [job.plan(*hosts).search for hosts in ((A100, V100), (V100, A100))]
    alone = min(job.plan(device).search.best_step_time_ns for device in (A100, V100))
    ignoring, steps = job.ignoring_ns(), [found.best_step_time_ns for found in mixed]
    return {
        "model": model,
        "mixed_ns": steps,
        "lower_bound_ns": max(found.lower_bound_ns or 0 for found in mixed),
        "ignoring_ns": ignoring,
        "one_type_ns": alone,
        "ratio": min(ignoring, alone) / max(steps),
        "bounded": all(found.lower_bound_ns is not None for found in mixed),
        "load": os.getloadavg()[0],
    }


def main() -> int:
    """Print the table; exit 1 where a mixed plan is the slower, or has no bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="models whose name matches")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of each search")
    add_output(parser)
    args = parser.parse_args()
    lost = 0
    print("model                A100 first  V100 first    ignoring  one type   bound ms   ratio  load")
    for each in kept((row(model, args.seconds) for model in MODELS if re.search(args.only, model)), args.output):
        lost += each["ratio"] < 1 or not each["bounded"]
        first, second = (step / 1e6 for step in each["mixed_ns"])
        print(
            f"{each['model']:20} {first:10.2f} {second:11.2f} {each['ignoring_ns'] / 1e6:11.2f} "
            f"{each['one_type_ns'] / 1e6:9.2f} {each['lower_bound_ns'] / 1e6:10.2f} {each['ratio']:7.3f} "
            f"{each['load']:5.1f}",
            flush=True,
        )
    print(f"{lost} models whose mixed plan is slower than another, or has no bound")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
