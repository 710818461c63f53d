"""Megatron-LM: the flags of a plan, its layout among them, one a line, as a shell reads them.

Names are those of `megatron/training/arguments.py`. Ranks follow Megatron's own order, tensor innermost, then context,
data and pipeline. Leaves out the model's own sizes but its layers, and what a plan does not say: data, learning rate.
"""

import json
from shlex import join

from planner.graph.layout import layer_letters, layout_text
from planner.plan import Plan
from planner.question.pipeline_support import Job

PRECISIONS = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp8": ["--bf16", "--fp8-format hybrid"]}
AWARE = ("--use-precision-aware-optimizer",)
OPTIMIZERS = {
    "sgd": ["--optimizer sgd", "--sgd-momentum 0.0"],
    "momentum": ["--optimizer sgd"],
    "adam": ["--optimizer adam"],
    "adam-16bit": ["--optimizer adam", *AWARE, "--exp-avg-dtype fp16", "--exp-avg-sq-dtype fp16"],
    "adam-8bit": ["--optimizer adam", *AWARE, "--exp-avg-dtype fp8", "--exp-avg-sq-dtype fp8"],
}
RECOMPUTE = {
    "selective": ["--recompute-granularity selective"],
    "full": ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"],
}


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
    config, places = plan.stages[0].config, len(Job(plan).places)
    found = [
        f"--pipeline-model-parallel-size {places}",
        f"--tensor-model-parallel-size {config.tensor}",
        f"--context-parallel-size {config.context}",
        f"--expert-model-parallel-size {config.expert}",
        f"--micro-batch-size {plan.batch.microbatch_size}",
        f"--global-batch-size {plan.batch.global_size}",
        *RECOMPUTE.get(config.recompute, ()),
        *PRECISIONS.get(plan.assumptions.precision, ()),
    ]
    found += ["--sequence-parallel"] * (config.sequence > 1) + ["--use-distributed-optimizer"] * (config.zero > 0)
    found += OPTIMIZERS.get(plan.assumptions.optimizer, [])
    habits = plan.assumptions.habits
    found += ["--overlap-grad-reduce"] * ("overlap" in habits and config.data > 1)
    found += ["--overlap-param-gather"] * ({"overlap", "overlap gathers"} <= set(habits) and config.zero > 0)
    if len(plan.stages) == 1:
        return found
    letters = "".join(layer_letters(Job(plan).parts))
    found += [f"--num-layers {letters.count('t')}", join(["--pipeline-model-parallel-layout", layout(plan)])]
    return found + [f"--mtp-num-layers {letters.count('m')}"] * ("m" in letters)
