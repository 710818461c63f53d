"""Plans of one stage with replicas, as trainers of FSDP2 and DistributedDataParallel take them.

What `accelerate`, `lightning` and `automodel` share. Leaves out stages in a line, and what divides a replica.
"""

from dataclasses import dataclass, replace
from typing import Any

from costmodel.errors import DoesNotMatch, NoPlanFits
from planner.plan import Plan
from planner.plan.rung import rung
from planner.question.space import Space


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """What such a trainer is told.

    Attributes
    ----------
    replicas, shard_group : int
        How many there are, and how many of them divide states; a group of 1 is DistributedDataParallel.
    reshard : bool
        Whether parameters are divided again behind the forward (ZeRO-3).
    units : tuple of str
        Modules whose parameters are gathered by themselves.
    microbatch_size, accumulation : int
        Samples of a forward, and forwards of a replica in a step.
    checkpointing, offload : bool
        Whether units run again in the backward; whether parameters and states lie in host memory.
    precision : str
        Of mixed precision: ``fp32`` for none.
    hosts, host_devices : int
    """

    replicas: int
    shard_group: int
    reshard: bool
    units: tuple[str, ...]
    microbatch_size: int
    accumulation: int
    checkpointing: bool
    offload: bool
    precision: str
    hosts: int
    host_devices: int


def replica_settings(plan: Plan, trainer: str) -> ReplicaSettings:
    """Return what a trainer of replicas is told of a plan.

    Raises
    ------
    DoesNotMatch
        When the plan has several stages, divides a replica, or has what FSDP2 does not do.
    """
    config = plan.stages[0].config
    if refused := _refusal(plan):
        raise DoesNotMatch(
            f"{trainer} does not take this plan ({rung(plan)}): {refused}; plan with --target torchtitan --stages 1 "
            "--tensor 1 --context 1 --expert 1 and --recompute none, or full with --zero 3"
        )
    hosts = [plan.cluster.seats[rank] for rank in range(len(plan.orders))]
    if len({hosts.count(host) for host in hosts}) > 1:
        raise DoesNotMatch(f"{trainer} does not take this plan: its hosts have {sorted(map(hosts.count, set(hosts)))} "
                           "ranks, and each needs as many; plan for another --devices")  # fmt: skip
    return ReplicaSettings(
        replicas=config.data,
        shard_group=(config.shard_group or config.data) if config.zero else 1,
        reshard=config.zero == 3,
        units=plan.stages[0].units,
        microbatch_size=plan.batch.microbatch_size,
        accumulation=plan.batch.num_microbatches // config.data,
        checkpointing=config.recompute == "full",
        offload=config.offload == "parameters",
        precision=_precision(plan),
        hosts=len(set(hosts)),
        host_devices=hosts.count(hosts[0]),
    )


def _refusal(plan: Plan) -> str:
    """Return what of a plan no trainer of replicas takes."""
    config = plan.stages[0].config
    if len(plan.stages) > 1:
        return f"it has {len(plan.stages)} stages"
    divided = [name for name in ("tensor", "context", "expert") if getattr(config, name) > 1]
    if divided:
        return f"{divided[0]} parallelism divides a replica"
    if config.zero == 1:
        return "FSDP2 has no ZeRO-1"
    if config.recompute not in ("none", "full") or config.recomputed_operators:
        return "a part of each layer runs again, and FSDP2's trainers run whole layers again"
    if config.recompute == "full" and config.data > 1 and not config.zero:
        return "layers run again under DistributedDataParallel, which has no setting for that"
    if config.offload not in ("none", "parameters") or (config.offload != "none" and not config.zero):
        return f"offload of {config.offload} without ZeRO-2 or 3"
    return ""


def _precision(plan: Plan) -> str:
    """Return the precision that forwards are cast to; the executor's plans say what autocast does."""
    casts = {"bfloat16": "bf16", "float16": "fp16"}
    named = plan.assumptions.precision or casts.get(plan.training.autocast.removeprefix("torch."), "fp32")
    return "fp32" if named == "tf32" else named


def find(name: str, num_devices: int, global_batch: int, *, space: Space | None = None, **choices: Any) -> Plan:
    """Return a plan of replicas for a model, found once (`planner.front.find_plan`): without recompute where that fits.

    Raises
    ------
    NoPlanFits
        When replicas that divide all states and run layers again do not fit either.
    """
    from planner.front import find_plan

    asked = replace(space or Space(), stages=1, tensor=1, context=1, expert=1)
    choices = {"target": "torchtitan", **choices}
    try:
        return find_plan(name, num_devices, global_batch, space=replace(asked, recompute="none"), **choices)
    except NoPlanFits:
        asked = replace(asked, recompute="full", zero=3)
        return find_plan(name, num_devices, global_batch, space=asked, **choices)
