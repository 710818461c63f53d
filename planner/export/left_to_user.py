"""What a plan says that the files of a form cannot: a user has to set it in the trainer, or it runs something else.

Leaves out what a plan does not say either: data, learning rate, compilation.
"""

from planner.export.megatron import OPTIMIZERS
from planner.plan import Plan
from planner.plan.rank_order import RANK_ORDER
from planner.question.pipeline_support import Job

DEGREES = ("data", "tensor", "context", "expert")
FORMS = {
    "torch-csv": (),
    "torchtitan": ("degrees", "zero", "recompute"),
    "megatron": ("degrees", "zero", "recompute", "optimizer", "precision", "shared"),
    "deepspeed": ("data", "zero", "offload"),
}
"""What the files of each form say."""


def left_to_you(plan: Plan, form: str) -> list[str]:
    """Return what has to be set by hand, in a few words each."""
    config, assumed, said = plan.stages[0].config, plan.assumptions, set(FORMS[form])
    if form == "deepspeed" and len(plan.stages) > 1:
        said |= {"recompute"}  # the subclass checkpoints every layer
    if form == "deepspeed" and assumed.precision in ("bf16", "fp16", "fp32"):
        said |= {"precision"}
    found = [
        f"{name} {getattr(config, name)}"
        for name in DEGREES
        if getattr(config, name) > 1 and not {"degrees", name} & said
    ]
    folded = config.expert_tensor != config.tensor and "degrees" not in said
    found += [f"expert tensor {config.expert_tensor}"] * folded
    order = Job(plan).rank_order
    found += [f"rank order {', '.join(order)}"] * (form == "torch-csv" and order not in ((), RANK_ORDER))
    found += ["sequence parallel norms"] * (config.sequence > 1 and "degrees" not in said)
    found += [f"ZeRO-{config.zero}"] * (config.zero > 0 and "zero" not in said)
    found += [f"shard groups of {config.shard_group}"] * (config.shard_group > 0 and "zero" not in said)
    found += ["deepspeed.zero.MiCS_Init around the model"] * (config.shard_group > 0 and form == "deepspeed")
    found += [f"{config.recompute} recompute"] * (config.recompute != "none" and "recompute" not in said)
    found += [f"offload of {config.offload}"] * (config.offload != "none" and "offload" not in said)
    if assumed.precision and ("precision" not in said or assumed.precision == "tf32"):
        found.append(f"precision {assumed.precision}")
    if assumed.optimizer not in ("", "none") and ("optimizer" not in said or assumed.optimizer not in OPTIMIZERS):
        found.append(f"optimizer {assumed.optimizer}")
    shared = dict.fromkeys(name for stage in plan.stages for name in stage.shared)
    found += [f"{name} tied between stages" for name in shared if "shared" not in said]
    return found
