"""Lightning 2.6.6: a plan of replicas as the arguments of its `Trainer`, and one line of `configure_model`.

    from executor.adapters.lightning import find, shard, trainer_options

    plan = find("my_model:build", num_devices=8, global_batch=256)
    class Module(LightningModule):
        def configure_model(self):
            shard(self, plan)
    Trainer(**trainer_options(plan)).fit(Module(), data)

FSDP2 with the plan's units by `ModelParallelStrategy`, which leaves it to `configure_model` to divide the model, or
DistributedDataParallel; gradient accumulation; mixed precision. Left to you: a data loader of
`plan.batch.microbatch_size` samples, and the optimizer.
"""

from typing import Any

from torch import nn

from costmodel.errors import DoesNotMatch
from executor.adapters.replicas import find, replica_settings
from planner.plan import Plan

__all__ = ["find", "shard", "trainer_options"]
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
"""What Lightning calls them."""


def trainer_options(plan: Plan) -> dict[str, Any]:
    """Return the arguments of `Trainer` for a plan.

    Raises
    ------
    DoesNotMatch
        When Lightning does not take the plan.
    """
    settings = replica_settings(plan, "Lightning")
    if settings.precision not in PRECISIONS:
        raise DoesNotMatch(f"Lightning has no precision {settings.precision}; plan with one of {', '.join(PRECISIONS)}")
    if 1 < settings.shard_group < settings.replicas:
        raise DoesNotMatch(
            f"Lightning does not take this plan: its mesh has no shard groups, and the plan's are of "
            f"{settings.shard_group}; plan without --shard-group"
        )
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

    divided = settings.shard_group > 1
    strategy = (
        ModelParallelStrategy(settings.replicas, 1) if divided else DDPStrategy() if settings.replicas > 1 else "auto"
    )
    return {
        "strategy": strategy,
        "devices": settings.host_devices,
        "num_nodes": settings.hosts,
        "precision": PRECISIONS[settings.precision],
        "accumulate_grad_batches": settings.accumulation,
    }


def shard(module: Any, plan: Plan) -> None:
    """Divide a LightningModule's parameters as a plan of ZeRO-2 or 3 says; others are left as they are.

    Parameters
    ----------
    module : LightningModule
        In its `configure_model`: one that holds the model that was planned as an attribute, or is it.
    plan : Plan
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    settings = replica_settings(plan, "Lightning")
    if settings.shard_group == 1:
        return
    model = _model_of(module, settings.units)
    units = [model.get_submodule(name) for name in settings.units]
    if settings.checkpointing:
        apply_activation_checkpointing(model, check_fn=lambda each: any(each is unit for unit in units))
    options: dict[str, Any] = {
        "mesh": module.device_mesh["data_parallel"],
        "reshard_after_forward": settings.reshard,
        "offload_policy": CPUOffloadPolicy() if settings.offload else OffloadPolicy(),
    }
    for unit in [*units, model]:
        fully_shard(unit, **options)


def _model_of(module: nn.Module, units: tuple[str, ...]) -> nn.Module:
    """Return the model whose submodules the units are: the one that the module holds, or itself."""
    for candidate in (*module.children(), module):
        held = set(map(id, candidate.parameters()))
        if held and {name for name, _ in candidate.named_modules()}.issuperset(units):
            outside = next((name for name, each in module.named_parameters() if id(each) not in held), "")
            if outside:
                raise DoesNotMatch(
                    f"the plan's model is a {type(candidate).__name__}, and the module trains {outside!r} besides, "
                    "whose gradients nobody would sum; plan a model that holds it"
                )
            return candidate
    missing = repr(units[0]) if units else "parameters"
    raise DoesNotMatch(f"the plan gathers {missing} by itself, which the module does not have; plan this model")
