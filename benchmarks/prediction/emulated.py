"""Plans of more ranks than cores, every action held for its planned time: what `benchmarks.prediction --emulate` runs.

The profile's operators are cut into one stage a rank of about equal work. Leaves out computing: what an action really
computes fits into the time that it is held for, so what is left is order, messages and Python.
"""

import json
import statistics
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.support.steps_in_turn import reordered, run_in_turn
from costmodel.model.profile import Profile, read_profile
from costmodel.stages.costs import StageCost, at
from examples.commands import penstock
from planner.plan import Plan, read_plan, write_plan

MODEL, MICROBATCHES, HELD_NS = "zoo:gpt:small", 16, 30_000_000
"""Micro-batches are of one sample; stages' times are scaled so that their mean forward is HELD_NS."""


def emulate(ranks: Sequence[int], schedules: Sequence[str], folder: Path, num_steps: int) -> list[dict[str, Any]]:
    """Return a row a number of ranks and schedule."""
    profile, found, pins = folder / "profile.json", folder / "plan.json", folder / "pins.toml"
    penstock("profile", MODEL, "-o", profile, "--microbatch-sizes", 1)
    rows = []
    for num_ranks in ranks:
        print(f"{num_ranks} emulated ranks", file=sys.stderr, flush=True)
        pins.write_text(stages_of(read_profile(profile), [1] * num_ranks))
        words = ("--batch", MICROBATCHES, "--microbatch-size", 1, "--pin", pins, "-o", found)
        penstock("plan", profile, "--devices", num_ranks, "--schedule", "graph-1f1b", *words)
        plans = [reordered(scaled(read_plan(found)), schedule) for schedule in schedules]
        files = [folder / f"{schedule}.json" for schedule in schedules]
        for file, made in zip(files, plans, strict=True):
            write_plan(file, made)
        rows += [row(*each) for each in zip(plans, run_in_turn(files, MODEL, num_steps, emulate=True), strict=True)]
    return rows


def row(plan: Plan, times: Sequence[int]) -> dict[str, Any]:
    """Return what is told of one plan."""
    predicted, measured = plan.prediction.step_time_ns, int(statistics.median(times))
    error = 100 * (predicted - measured) / measured
    return {
        "model": f"{MODEL} on {len(plan.orders)} ranks",
        "schedule": plan.schedule,
        "microbatch_size": 1,
        "shortest_forward_ms": min(at(stage.cost.forward_ns, 0) for stage in plan.stages) / 1e6,
        "error_percent": error,
        "errors": [error],
        "rounds": [(predicted, measured)],
    }


def stages_of(profile: Profile, shares: Sequence[int]) -> str:
    """Return pins (TOML) that cut the operators in their order into stages whose work is about in these shares."""
    work = [t.forward_ns[0] + t.backward_input_ns[0] + t.backward_weight_ns[0] for t in profile.times]
    middles = [total - own / 2 for total, own in zip(accumulate(work), work, strict=True)]
    ends = [sum(work) * end / sum(shares) for end in accumulate(shares)]
    stages: list[list[str]] = [[] for _ in shares]
    for operator, middle in zip(profile.graph.operators, middles, strict=True):
        stages[min(len(shares) - 1, bisect_right(ends, middle))].append(operator.name)
    return "".join(f"[[stage]]\noperators = {json.dumps(names)}\n" for names in stages)


def scaled(plan: Plan) -> Plan:
    """Return the plan with its stages' computing times multiplied, so that their mean forward is `HELD_NS`."""
    factor = HELD_NS / statistics.mean(at(stage.cost.forward_ns, 0) for stage in plan.stages)

    def slower(cost: StageCost) -> StageCost:
        return replace(
            cost,
            forward_ns=round(factor * at(cost.forward_ns, 0)),
            backward_input_ns=round(factor * at(cost.backward_input_ns, 0)),
            backward_weight_ns=round(factor * at(cost.backward_weight_ns, 0)),
        )

    stages = tuple(replace(stage, cost=slower(stage.cost)) for stage in plan.stages)
    return replace(plan, stages=stages)
