"""megatron-core 0.16.1: a plan as its configuration objects, its layout among them, and Megatron-LM's arguments.

    from executor.adapters.megatron import configurations, find, launch_arguments

    plan = find("llama3-70b", num_devices=64, global_batch=512)
    made = configurations(plan)
    TransformerConfig(**made["model"], hidden_size=8192, num_attention_heads=64, ...)
    DistributedDataParallelConfig(**made["ddp"]); OptimizerConfig(**made["optimizer"], lr=3e-4)

The sections and fields are those of Megatron-Bridge's recipes too, on which `planned` sets them. Left to you: the
model's sizes beside its layers, data, learning rate. Megatron-LM's own script takes `launch_arguments`.
"""

import shlex
from typing import Any

import torch

from costmodel.errors import DoesNotMatch
from executor.adapters.finder import finder
from planner.export.job_configs.key_table import key_table
from planner.export.megatron import facts, flags
from planner.plan import Plan
from planner.question.pipeline_support import not_taken

SECTIONS = ("model", "ddp", "optimizer", "train")
"""Of a recipe: `TransformerConfig`, `DistributedDataParallelConfig`, `OptimizerConfig`, and its batch."""
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.uint8}
"""Of Adam's states, as Megatron-LM's arguments name them."""
find = finder("megatron")
"""Of a plan that Megatron-LM takes, found once."""


def configurations(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return what the configuration objects are told of a plan, by section and field.

    Raises
    ------
    DoesNotMatch
        When Megatron does not take the plan: says what of it.
    """
    _check(plan)
    said, carried = facts(plan), key_table("megatron-bridge").carried
    found: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key, fact in carried.items():
        section, _, field = key.partition(".")
        value = said.get(fact)
        if section in found and value is not None and value is not False:
            found[section][field] = DTYPES[str(value)] if field.endswith("_dtype") else value
    return _with_dtypes(found)


def _with_dtypes(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add what Megatron-LM derives of a precision: the type of parameters and messages, and the optimizer's."""
    half = next((name for name in ("bf16", "fp16") if found["model"].get(name)), "")
    dtype = DTYPES.get(half, torch.float32)
    found["model"] |= {"params_dtype": dtype, "pipeline_dtype": dtype}
    found["optimizer"] |= {"params_dtype": dtype, **({half: True} if half else {})}
    return found


def planned(config: Any, plan: Plan) -> Any:
    """Set what a plan says in a recipe of sections, as Megatron-Bridge's are, and return it."""
    for section, fields in configurations(plan).items():
        for field, value in fields.items():
            setattr(getattr(config, section), field, value)
    return config


def launch_arguments(plan: Plan) -> list[str]:
    """Return the arguments that Megatron-LM's training script takes for a plan."""
    _check(plan)
    return [word for flag in flags(plan) for word in shlex.split(flag)]


def _check(plan: Plan) -> None:
    if reason := not_taken("megatron", plan):
        raise DoesNotMatch(f"Megatron does not take this plan: {reason}; plan with --target megatron")
