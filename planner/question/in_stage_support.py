"""What trainers run inside a stage: degrees, ZeRO, recompute, offload.

Sources: torchtitan's `parallel_dims.py` (experts spread over ranks that FSDP, context or tensor parallelism divide, and
over no replicas), Megatron-LM's arguments, DeepSpeed's `PipelineModule` (ZeRO-2 and 3 without a pipeline only) and its
MiCS, which is a ZeRO-3 (`runtime/zero/mics.py`). Leaves out how stages follow each other
(`planner.question.pipeline_support`).
"""

from costmodel.stages.config import BY_OPERATOR, RECOMPUTE, StageConfig
from costmodel.stages.strategies import EXECUTOR
from planner.plan.rank_order import PIPELINE_INSIDE, RANK_ORDER, RankOrder

Names = tuple[str, ...]
RECOMPUTED = {
    "torchtitan": ", but of all layers, of every n-th or of kinds of operators (activation_checkpoint)",
    "deepspeed": ", but of all layers (activation_checkpoint_interval)",
}
"""What trainers run again in place of operators by name."""


def config_refusal(target: str, config: StageConfig, pipelined: bool) -> str:
    """Return what of a stage's configuration a target does not run, nothing where it runs all of it."""
    degrees, zeros, recompute, offload = _taken(target, pipelined)
    divided = [name for name in ("tensor", "sequence", "context", "expert") if getattr(config, name) > 1]
    wrong = [name for name in divided if name not in degrees]
    alone = _taken(target, False)
    if wrong:
        return f"{wrong[0]} parallelism" + " within a pipeline" * (pipelined and wrong[0] in alone[0])
    if config.zero not in zeros:
        return f"ZeRO-{config.zero}" + " within a pipeline" * (pipelined and config.zero in alone[1])
    if target == "deepspeed" and config.shard_group and (config.zero < 3 or config.tensor * config.context > 1):
        return f"ZeRO-{config.zero} in shard groups of {config.shard_group}, but ZeRO-3 of undivided replicas"
    if target == EXECUTOR and config.zero == 1 and config.tensor > 1:
        return "ZeRO-1 and tensor parallelism together"
    if config.expert_tensor != config.tensor and target not in ("megatron", "torchtitan"):
        return f"an expert tensor degree of {config.expert_tensor} with a tensor degree of {config.tensor}"
    if target == "torchtitan" and (why := _torchtitan_experts(config)):
        return why
    if config.recompute not in recompute:
        lacks = RECOMPUTED.get(target, "")
        return f"recompute of some operators{lacks}" if config.recomputed_operators else f"{config.recompute} recompute"
    if config.offload_fraction < 1 and (target, config.zero, config.offload) != ("deepspeed", 3, "optimizer"):
        return f"offload of a part of {config.offload}"
    return "" if config.offload in offload else f"offload of {config.offload}"


def _torchtitan_experts(config: StageConfig) -> str:
    """Return what of a division of experts torchtitan does not run: parts of experts are tensor ranks', or whole."""
    if config.expert_tensor != config.tensor and (config.expert_tensor > 1 or config.expert == 1):
        return f"an expert tensor degree of {config.expert_tensor} with {config.expert} expert-parallel ranks"
    if config.zero == 0 and config.context * config.tensor % config.num_expert_parts:
        return "expert parallelism without ZeRO-2 or 3"
    return ""


def _taken(target: str, pipelined: bool) -> tuple[Names, tuple[int, ...], Names, Names]:
    """Return what a target runs inside stages: degrees, stages of ZeRO, recompute, offload."""
    every = ("tensor", "sequence", "context", "expert")
    if target == EXECUTOR:
        return ("tensor",), (0, 1, 2, 3), ("none", "full", BY_OPERATOR), ("none",)
    if target == "torchtitan":
        return every, (0, 2, 3), RECOMPUTE, ("none",)
    if target == "megatron":
        return every, (0, 1), (*RECOMPUTE, BY_OPERATOR), ("none",)
    return (
        (("tensor",), (0, 1), ("none", "full"), ("none", "optimizer", "parameters"))
        if pipelined
        else (("tensor", "expert"), (0, 1, 2, 3), ("none", "full"), ("none", "optimizer", "parameters"))
    )


def during_compute_refusal(target: str, config: StageConfig, *, pipelined: bool, looped: bool) -> str:
    """Return what a target does not run where all-to-alls of experts run during another micro-batch's compute.

    Megatron-LM's conditions are those of `transformer_config.py` (overlap_moe_expert_parallel_comm).
    """
    if target != "megatron" or config.expert == 1:
        return ""
    if config.recompute == "full" or config.recomputed_operators:
        return f"{config.recompute} recompute with tokens sent to experts during compute"
    return "tokens sent to experts during compute in a pipeline of one stage a rank" if pipelined and not looped else ""


RANK_ORDERS = {"torchtitan": (RANK_ORDER,), "megatron": (RANK_ORDER, PIPELINE_INSIDE), "deepspeed": (RANK_ORDER,)}
"""The rank orders that trainers have."""


def rank_order_refusal(target: str, order: RankOrder, config: StageConfig | None = None) -> str:
    """Return which rank order a target does not have, for stages configured so; nothing where ranks follow none.

    Where stages are side by side Megatron-LM has as many replicas of experts as of all else (`parallel_state.py`).
    """
    if order and order not in RANK_ORDERS.get(target, (order,)):
        return f"the rank order {', '.join(order)}"
    if target == "megatron" and config and order == PIPELINE_INSIDE and config.expert != config.context:
        degrees = f"expert {config.expert} and context {config.context}"
        return f"the rank order {', '.join(order)} with {degrees}, but with the two alike"
    return ""
