"""Megatron-LM: the flags of a plan, its layout among them, one a line, as a shell reads them.

Names are those of `megatron/training/arguments.py`, by the table that ``import job`` reads them by. Ranks follow one of
Megatron's two orders: tensor innermost, then context, data and pipeline, or these two the other way round. Leaves out
the model's own sizes but its layers, and what a plan does not say: data, learning rate.
"""

import json
from collections.abc import Set
from shlex import join

from costmodel.roofline.narrow import RECIPES
from costmodel.stages.strategies.trainers import DISPATCHERS
from planner.export.job_configs.key_table import key_table
from planner.graph.layout import layer_letters, layout_text
from planner.plan import Plan
from planner.plan.rank_order import PIPELINE_INSIDE
from planner.question.pipeline_support import Job

Facts = dict[str, object]
PRECISIONS: dict[str, Facts] = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp8": {"bf16": True, "fp8": "hybrid"},
    "nvfp4": {"bf16": True, "fp4": "e2m1"},
}
OPTIMIZERS: dict[str, Facts] = {
    "sgd": {"optimizer": "sgd", "momentum": 0.0},
    "momentum": {"optimizer": "sgd"},
    "adam": {"optimizer": "adam"},
    "adam-16bit": {"optimizer": "adam", "own_state_dtypes": True, "first_moment": "fp16", "second_moment": "fp16"},
    "adam-8bit": {"optimizer": "adam", "own_state_dtypes": True, "first_moment": "fp8", "second_moment": "fp8"},
}
RECOMPUTE: dict[str, Facts] = {
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1},
}

BLOCK: Facts = {"recompute": "full", "recompute_method": "block"}
"""Of the first layers of each stage."""


def files(plan: Plan) -> dict[str, str]:
    """Return the files of a plan, by name."""
    found = {"flags.txt": "\n".join([*flags(plan), ""])}
    if len(plan.stages) > 1:
        found["layout.txt"] = layout(plan) + "\n"
        found["parts.json"] = json.dumps(Job(plan).parts, indent=1) + "\n"
    return found


def layout(plan: Plan) -> str:
    """Return the layout of a plan's stages."""
    return layout_text(layer_letters(Job(plan).parts))


def flags(plan: Plan) -> list[str]:
    """Return the flags of a plan, each with its value."""
    table = key_table("megatron")
    pairs = ((f"--{table.key_of(fact)}", value) for fact, value in facts(plan).items() if value is not False)
    return [flag if value is True else join([flag, str(value)]) for flag, value in pairs]


def _of_experts(habits: Set[str]) -> Facts:
    """Return how tokens reach experts on other ranks, which Megatron gathers where nothing is said."""
    dispatcher = next((name for name in DISPATCHERS if f"dispatcher {name}" in habits), DISPATCHERS[0])
    return {"dispatcher": dispatcher, "overlap_experts": "overlap experts" in habits}


def facts(plan: Plan) -> Facts:
    """Return what the flags of a plan say, by fact; false for flags that are left out."""
    config, places = plan.stages[0].config, len(Job(plan).places)
    habits, again = set(plan.assumptions.habits), Job(plan).layers_again
    recipe = next((name for name in RECIPES if f"fp8 recipe {name}" in habits), "")
    found: Facts = {
        "stages": places,
        "tensor": config.tensor,
        "context": config.context,
        "expert": config.expert,
        "expert_tensor": config.expert_tensor if config.expert_tensor != config.tensor else False,
        "microbatch_size": plan.batch.microbatch_size,
        "global_batch": plan.batch.global_size,
        **({**BLOCK, "recompute_layers": again} if again else RECOMPUTE.get(config.recompute, {})),
        **PRECISIONS.get(plan.assumptions.precision, {}),
        **({"fp8_recipe": recipe} if recipe else {}),
        "sequence_parallel": config.sequence > 1,
        "pipeline_inside": Job(plan).rank_order == PIPELINE_INSIDE,
        "sharded_optimizer": config.zero > 0,
        "optimizer_instances": config.data // config.shard_group if config.shard_group else False,
        **OPTIMIZERS.get(plan.assumptions.optimizer, {}),
        "overlap": "overlap" in habits and config.data > 1,
        **(_of_experts(habits) if config.expert > 1 else {}),
        "overlap_gathers": {"overlap", "overlap gathers"} <= habits and config.zero > 0,
    }
    if len(plan.stages) == 1:
        return found
    letters = "".join(layer_letters(Job(plan).parts))
    found |= {"num_layers": letters.count("t"), "layout": layout(plan)}
    return found | ({"mtp_layers": letters.count("m")} if "m" in letters else {})
