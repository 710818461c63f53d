"""DeepSpeed's facts as a job: batch, ZeRO, offload, and a pipeline's stages as `PipelineModule` divides its layers.

Entries of its list of layers are taken to be the model's parts: embedding, each layer, norm, head. Leaves out the
tensor-parallel `mpu` of a pipeline, of which the configuration says nothing.
"""

from itertools import pairwise

from costmodel.errors import UsageError
from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig
from planner.export.given import operators_of
from planner.export.job_configs.facts import Facts
from planner.export.job_configs.interpreted import (
    TodaysJob,
    layers_of,
    optimizer_of,
    precision_of,
    replicas,
    stages_by_parts,
    world_size,
)
from planner.export.job_configs.layer_rows import balanced_bounds, uniform_bounds
from planner.question.effort import check_reach

HOST = ("cpu", "nvme")
AUTOCAST = {"bfloat16": "bf16", "float16": "fp16", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


def deepspeed_job(facts: Facts, graph: OperatorGraph, given_world: int) -> TodaysJob:
    """Return the job of a DeepSpeed configuration on a model.

    Raises
    ------
    InvalidInput, UsageError, DoesNotMatch
        For keys that contradict each other, or the model.
    """
    places, tensor, context = (facts.count(name, 1, 1) for name in ("stages", "tensor", "context"))
    inside = places * tensor * context
    size, accumulation, data = _batch(facts, world_size(facts, given_world), inside)
    check_reach(inside * data, size * accumulation * data, size)
    zero = facts.count("zero", 0)
    if zero > 3:
        facts.fail("zero", "ZeRO has the stages 0 to 3")
    if zero > 1 and places > 1:
        facts.fail("zero", "DeepSpeed's pipelines run under ZeRO-0 and 1 alone; take it down to 1, or pipeline.stages")
    offload = _offload(facts, zero)
    config = StageConfig(
        data=data,
        tensor=tensor,
        context=context,
        zero=zero if data * context > 1 else 0,
        recompute="full" if _interval(facts, places) else "none",
        offload=offload,
        shard_group=_shard_group(facts, data, zero),
        offload_fraction=facts.part("offload_fraction") if offload == "optimizer" and zero == 3 else 1.0,
    )
    return TodaysJob(
        "deepspeed",
        config,
        places,
        size,
        size * accumulation * data,
        "1f1b",
        stages_by_parts(_rows(facts, graph, places), graph) if places > 1 else (tuple(range(len(graph.operators))),),
        tuple(range(places)),
        _precision(facts),
        _optimizer(facts),
        _habits(facts),
    )


def _shard_group(facts: Facts, data: int, zero: int) -> int:
    """Return how many replicas MiCS shards over: all where it is not on."""
    if zero < 3:
        facts.leave("shard_group", "MiCS is a ZeRO-3")
        return data
    size = facts.count("shard_group", -1, -1)
    if size > 0 and data % size:
        facts.fail("shard_group", f"it does not divide {data} replicas")
    return size if size > 0 else data


def _batch(facts: Facts, world: int, inside: int) -> tuple[int, int, int]:
    """Return micro-batch size, micro-batches of a replica, and replicas: two sizes give the third, as in DeepSpeed."""
    batch, size, steps = (facts.count(name, 0, 1) for name in ("global_batch", "microbatch_size", "accumulation"))
    if not world and not (batch and size and steps):
        raise UsageError(
            "the job's configuration says neither the number of devices nor all of train_batch_size, "
            "train_micro_batch_size_per_gpu and gradient_accumulation_steps; give --world-size N"
        )
    data = replicas(world, inside) if world else max(1, batch // (size * steps))
    if not size and not batch:
        raise UsageError(
            "the job says neither train_batch_size nor train_micro_batch_size_per_gpu, and needs one; "
            'for what is "auto" write the numbers that the script puts in'
        )
    size = size or max(1, batch // (data * (steps or 1)))
    steps = steps or (max(1, batch // (data * size)) if batch else 1)
    if batch and batch != size * steps * data:
        product = f"{size} a micro-batch x {steps} micro-batches x {data} replicas"
        facts.fail("global_batch", f"it is not {product} = {size * steps * data}")
    return size, steps, data


def _interval(facts: Facts, places: int) -> int:
    found = facts.count("checkpoint_interval", 0)
    if places == 1:
        facts.leave("checkpoint_interval", "there is no pipeline, whose layers it would run again")
        return 0
    if found > 1:
        facts.ignored.append((facts.values["checkpoint_interval"].key, "the plan runs every layer again by itself"))
    return found


def _offload(facts: Facts, zero: int) -> str:
    if not zero:
        for fact in ("offload_parameters", "offload_optimizer", "cpu_offload"):
            facts.leave(fact, "without ZeRO nothing goes to the host")
        return "none"
    on_host = facts.text("offload_optimizer", "none", (*HOST, "none")) in HOST or facts.flag("cpu_offload")
    if facts.text("offload_parameters", "none", (*HOST, "none")) in HOST and zero == 3:
        if not on_host:
            why = "the optimizer's states, which stay on the device, are priced as on the host with the parameters"
            facts.ignored.append((facts.values["offload_parameters"].key, why))
        return "parameters"
    facts.leave("offload_parameters", "parameters go to the host under ZeRO-3 alone")
    return "optimizer" if on_host else "none"


def _precision(facts: Facts) -> str:
    """Return the precision; a model that no key casts is cast to fp32."""
    dtype = facts.text("autocast_dtype", "bfloat16", AUTOCAST)
    cast = AUTOCAST[dtype] if facts.flag("autocast") else "fp16" if facts.flag("amp") else "fp32"
    found = precision_of(facts, cast)
    for fact in ("autocast", "amp"):
        if facts.said(fact):
            why = "its casts are priced as mixed precision with a master copy" if found == cast else "another one holds"
            facts.leave(fact, why)
    return found


def _rows(facts: Facts, graph: OperatorGraph, places: int) -> list[list[str]]:
    """Return the parts of each stage."""
    found = layers_of(graph)
    parts = [part for part in dict.fromkeys(graph.parts) if part]
    method = facts.text("partition", "parameters").lower()
    if method in ("uniform",):
        bounds = uniform_bounds(len(parts), places)
    elif method in ("parameters", "best"):
        positions = operators_of(graph.parts)
        sizes = [sum(graph.operators[i].parameter_bytes for i in positions[part]) for part in parts]
        bounds = balanced_bounds(sizes, places)
    elif method.startswith("type:"):
        layers = {*found["t"], *found["m"]}
        bounds = balanced_bounds([int(part in layers) for part in parts], places)
    else:
        facts.fail("partition", "DeepSpeed divides by uniform, parameters and type:NAME (taken to name the layers)")
    return [parts[start:stop] for start, stop in pairwise(bounds)]


def _optimizer(facts: Facts) -> str:
    name = facts.text("optimizer", "Adam").lower()
    if name == "sgd":
        return "momentum" if facts.number("momentum", 0.0) else "sgd"
    facts.leave("momentum", "the optimizer has none")
    return optimizer_of(facts, name)


def _habits(facts: Facts) -> dict[str, object]:
    """Return the habits that the job tells otherwise than the trainer usually has them."""
    found: dict[str, object] = {"overlap": facts.flag("overlap")} if facts.said("overlap") else {}
    kept = facts.text("gradients_in", "", ("fp32", "fp16", "bf16"))
    facts.leave("reduce_in", "sums of gradients are priced in the width in which they are kept")
    return {**found, "gradient_bytes": 4 if kept == "fp32" else 2} if kept else found
