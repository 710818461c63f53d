"""accelerate 1.15.0: a plan of replicas as the arguments of its `Accelerator`.

    from executor.adapters.accelerate import accelerator_options, find

    plan = find("my_model:build", num_devices=8, global_batch=256)
    accelerator = Accelerator(**accelerator_options(plan, model))

FSDP2 with the plan's units, in shard groups too, or DistributedDataParallel; gradient accumulation; mixed precision.
Left to you: a data loader of `plan.batch.microbatch_size` samples, the optimizer, `accelerator.accumulate`.
"""

from typing import Any

from torch import nn

from costmodel.errors import DoesNotMatch
from executor.adapters.replicas import ReplicaSettings, find, replica_settings
from planner.plan import Plan

__all__ = ["accelerator_options", "find"]
PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
"""What accelerate calls them."""


def accelerator_options(plan: Plan, model: nn.Module) -> dict[str, Any]:
    """Return the arguments of `Accelerator` for a plan.

    Parameters
    ----------
    plan : Plan
    model : torch.nn.Module
        Which is not changed: its modules say of which classes the plan's units are.

    Raises
    ------
    DoesNotMatch
        When accelerate does not take the plan, or the model lacks its units.
    """
    settings = replica_settings(plan, "accelerate")
    if settings.precision not in PRECISIONS:
        raise DoesNotMatch(
            f"accelerate has no precision {settings.precision}; plan with one of {', '.join(PRECISIONS)}"
        )
    found: dict[str, Any] = {
        "mixed_precision": PRECISIONS[settings.precision],
        "gradient_accumulation_steps": settings.accumulation,
    }
    if settings.shard_group == 1:
        return found
    classes = _classes(settings, model)
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.parallelism_config import ParallelismConfig

    found["fsdp_plugin"] = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=settings.reshard,
        auto_wrap_policy="transformer_based_wrap" if settings.units else "no_wrap",
        transformer_cls_names_to_wrap=classes,
        activation_checkpointing=settings.checkpointing,
        cpu_offload=settings.offload,
    )
    if settings.shard_group < settings.replicas:
        copies = settings.replicas // settings.shard_group
        found["parallelism_config"] = ParallelismConfig(dp_replicate_size=copies, dp_shard_size=settings.shard_group)
    return found


def _classes(settings: ReplicaSettings, model: nn.Module) -> list[str]:
    """Return the classes of the plan's units in a model."""
    modules = dict(model.named_modules())
    missing = [name for name in settings.units if name not in modules]
    if missing:
        raise DoesNotMatch(f"the plan gathers {missing[0]!r} by itself, which the model does not have; plan this model")
    return list(dict.fromkeys(type(modules[name]).__name__ for name in settings.units))
