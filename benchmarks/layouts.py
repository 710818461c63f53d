"""Pipeline layouts that Megatron-Bridge ships, beside the planner's own for the same model, cluster and memory.

    python -m benchmarks.layouts [--only REGEX] [--seconds 20] [-o FILE.jsonl]

Each layout is imported and simulated on a described profile of its model, with the recipe's degrees and batch, then met
by three plans for Megatron: one that may only cut anew (`ours`), the same search started from the given plan, as
``penstock plan --from`` does (`from`), and one that may choose degrees, chunks and recompute too (`free`).
Ratios are the given layout's step time over ours: above 1 ours is faster. Times are of our simulation throughout; a
layout that does not fit by our count of memory is shown as refused. Layouts and degrees: Megatron-Bridge's
`perf_recipes` and `WorkloadBaseConfig`s (July 2026). Leaves out Qwen3-Next's `Et*4|(t*7|)*5t*8|tmL`, whose layers the
table of models does not have.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.support.kept_rows import add_output, kept
from costmodel.architectures.command import make
from costmodel.errors import NoPlanFits
from costmodel.stages.config import CONFIG, StageConfig
from planner import Effort, Plan, Problem, make_plan
from planner.export.given import given_plan
from planner.export.megatron import layout
from planner.export.read_layout import read_layout
from planner.graph.layout import parse_layout
from planner.question.pipeline_support import not_taken
from planner.question.space import Space


@dataclass(frozen=True, slots=True)
class Recipe:
    """A shipped layout with the job that it is for."""

    name: str
    layout: str
    model: str
    device: str
    precision: str
    sequence: int
    places: int
    config: StageConfig
    batch: int
    changed: str = ""
    """What of the recipe is another here, and why."""

    @property
    def num_devices(self) -> int:
        """Devices of the job."""
        return self.places * self.config.data * self.config.tensor


FULL = "full recompute: with the recipe's selective one, and Adam's states in fp32, it does not fit by our count"
RECIPES = (
    Recipe(
        "llama3-70b, 64 H100", "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", "llama3-70b", "h100-sxm-80", "fp8", 8192, 8,
        StageConfig(2, 4, 4, zero=1), 256,
    ),
    Recipe(
        "deepseek-v3, 1024 H100", "Et|(tt|)*30mL", "deepseek-v3", "h100-sxm-80", "bf16", 4096, 8,
        StageConfig(64, 2, 2, expert=64, zero=1, recompute="full", expert_tensor=1), 8192, FULL,
    ),
    Recipe(
        "deepseek-v3, 256 GB200", "Et*4|(tttt|)*14tmL", "deepseek-v3", "gb200-nvl72", "bf16", 4096, 4,
        StageConfig(64, expert=64, zero=1, recompute="full"), 2048, FULL,
    ),
    Recipe(
        "kimi-k2, 1024 H100", "Et|(tt|)*30L", "kimi-k2", "h100-sxm-80", "bf16", 4096, 16,
        StageConfig(8, 8, 8, expert=64, zero=1, recompute="full", expert_tensor=1), 8192, FULL,
    ),
    Recipe(
        "kimi-k2, 256 GB200", "Et*15|t*15|t*16|t*15L", "kimi-k2", "gb200-nvl72", "bf16", 4096, 4,
        StageConfig(64, expert=64, zero=1, recompute="full"), 2048,
        "shipped for 4 places without a training recipe: degrees and batch are DeepSeek-V3's, recompute is full",
    ),
)  # fmt: skip


def rows(recipes: list[Recipe], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield one row a layout."""
    for recipe in recipes:
        problem = _problem(recipe)
        row: dict[str, Any] = {"name": recipe.name, "layout": recipe.layout, "changed": recipe.changed}
        plans: list[Plan] = []
        row["given"] = _row(partial(_given, recipe, problem), plans)
        old = plans[0] if plans else None
        asked = {"ours": problem, "from": replace(problem, old_plan=old), "free": replace(problem, space=Space())}
        for name, each in asked.items():
            row[name] = _row(partial(_planned, replace(each, effort=Effort(seconds))), plans)
            if old and "step_time_ns" in row[name]:
                row[f"{name}_ratio"] = round(old.prediction.step_time_ns / row[name]["step_time_ns"], 4)
        yield row


def _problem(recipe: Recipe) -> Problem:
    config = recipe.config
    profile, _ = make(recipe.model, recipe.device, (1,), recipe.sequence, recipe.precision)
    space = Space(
        stages=recipe.places,
        chunks=len(parse_layout(recipe.layout)) // recipe.places,
        data=config.data,
        tensor=config.tensor,
        sequence_parallel=config.sequence > 1 or None,
        context=1,
        expert=config.expert,
        expert_tensor=config.expert_tensor if config.expert > 1 else None,
        zero=config.zero,
        recompute=config.recompute,
    )
    return Problem(profile, None, recipe.num_devices, recipe.batch, microbatch_size=1, target="megatron", space=space)


def _given(recipe: Recipe, problem: Problem) -> Plan:
    count = recipe.batch // recipe.config.data
    graph = problem.profile.graph
    return given_plan(problem, read_layout(recipe.layout, graph, recipe.places, recipe.config, count))


def _planned(problem: Problem) -> Plan:
    return make_plan(problem).plan


def _row(plan_of: Callable[[], Plan], plans: list[Plan]) -> dict[str, Any]:
    """Return what a plan comes to, or why there is none; `plans` gets the plan."""
    try:
        plan = plan_of()
    except NoPlanFits as error:
        return {"refused": str(error)}
    plans.append(plan)
    return {
        "step_time_ns": plan.prediction.step_time_ns,
        "peak_memory_gib": round(max(plan.prediction.peak_memory_bytes) / 2**30, 2),
        "layout": layout(plan) if len(plan.stages) > 1 and not not_taken("megatron", plan) else "",
        "config": CONFIG.write(plan.stages[0].config),
    }


def _text(found: dict[str, Any]) -> str:
    if "refused" in found:
        return str(found["refused"])
    return f"{found['step_time_ns'] / 1e6:11.3f} ms  {found['peak_memory_gib']:7.2f} GiB"


def main() -> int:
    """Print a table; exit 1 where a plan started from a given layout is slower than that."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="recipes such as 'llama3-70b'")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of each search (20)")
    add_output(parser)
    args = parser.parse_args()
    beaten = 0
    recipes = [recipe for recipe in RECIPES if re.search(args.only, recipe.name)]
    for row in kept(rows(recipes, args.seconds), args.output):
        print(f"{row['name']}{': ' if row['changed'] else ''}{row['changed']}")
        for name in ("given", "ours", "from", "free"):
            found, ratio = row[name], row.get(f"{name}_ratio")
            beaten += name == "from" and "step_time_ns" in row["given"] and (ratio or 0) < 1
            ends = f"{f'{ratio:.4f}' if ratio else '':6}  {found.get('layout', '')}"
            print(f"  {name:5} {_text(found)}  {ends}".rstrip(), flush=True)
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())
