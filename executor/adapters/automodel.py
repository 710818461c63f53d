"""NeMo Automodel 0.7.0: a plan of replicas as the sections of a recipe's YAML.

    from executor.adapters.automodel import find, recipe_sections

    plan = find("llama3-8b", num_devices=8, global_batch=256)
    yaml.safe_dump({**recipe, **recipe_sections(plan)}, file)

FSDP2, in shard groups too, or DistributedDataParallel; recompute, offload of parameters, precision, batch. Automodel
chooses what is gathered by itself: its layers. Left to you: model, data, optimizer.
"""

from typing import Any

from costmodel.errors import DoesNotMatch
from executor.adapters.replicas import find, replica_settings
from planner.plan import Plan

__all__ = ["find", "recipe_sections"]
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""What Automodel calls them."""


def recipe_sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the sections ``distributed`` and ``step_scheduler`` of a recipe.

    Raises
    ------
    DoesNotMatch
        When Automodel does not take the plan: says what of it.
    """
    settings = replica_settings(plan, "Automodel")
    if settings.precision not in DTYPES:
        raise DoesNotMatch(f"Automodel has no precision {settings.precision}; plan with one of {', '.join(DTYPES)}")
    dtype, sizes = DTYPES[settings.precision], {"dp_size": settings.replicas}
    if settings.shard_group == 1:
        strategy: dict[str, Any] = {"strategy": "ddp", **({"autocast_dtype": dtype} if dtype != "float32" else {})}
    else:
        sizes["dp_replicate_size"] = settings.replicas // settings.shard_group
        strategy = {
            "strategy": "fsdp2",
            "reshard_after_forward": settings.reshard,
            "mp_policy": {"param_dtype": dtype, "reduce_dtype": "float32"},
            **({"offload_policy": {}} if settings.offload else {}),
        }
    return {
        "distributed": {**strategy, **sizes, "activation_checkpointing": settings.checkpointing},
        "step_scheduler": {
            "global_batch_size": plan.batch.global_size,
            "local_batch_size": settings.microbatch_size,
        },
    }
