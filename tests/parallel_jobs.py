"""What ranks do where a function of the user's divides their stages: plans by hand, cut between layers."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from costmodel.capture.batches import split_batch
from costmodel.capture.capture import Capture, capture
from costmodel.capture.models import load_model
from costmodel.stages.config import StageConfig
from executor import Pipeline
from executor.check import compare
from planner.plan import Plan
from tests.module_promises import layer_of
from tests.plans_by_hand import plan_by_hand, split_backwards, with_lanes, with_recompute

TENSOR_PLAN = {
    "self_attn.q_proj": ColwiseParallel, "self_attn.k_proj": ColwiseParallel, "self_attn.v_proj": ColwiseParallel,
    "self_attn.o_proj": RowwiseParallel, "mlp.gate_proj": ColwiseParallel, "mlp.up_proj": ColwiseParallel,
    "mlp.down_proj": RowwiseParallel,
}  # fmt: skip


def layers_of(stage: Any) -> list[nn.Module]:
    """The layers of Hugging Face's Llama, or of a stage of it."""
    return [layer for layer in stage.model.layers if layer is not None] if stage.model is not None else []


def parallelize(stage: nn.Module, mesh: DeviceMesh, config: StageConfig) -> None:
    """Divide a stage of Hugging Face's Llama as its configuration says, block by block."""
    if config.tensor > 1:
        for layer in layers_of(stage):
            parallelize_module(layer, mesh["tensor"], {path: style() for path, style in TENSOR_PLAN.items()})
    if config.zero > 1:
        for layer in layers_of(stage):
            fully_shard(layer, mesh=mesh["data"])
        fully_shard(stage, mesh=mesh["data"])


@cache
def captured(model: str) -> Capture:
    return capture(load_model(model, 4))


def layered_plan(
    model: str,
    num_stages: int,
    *,
    data: Sequence[int] = (),
    tensor: Sequence[int] = (),
    zero: Sequence[int] = (),
    schedule: str = "graph-1f1b",
    num_microbatches: int = 4,
    **options: Any,
) -> Plan:
    """Cut a model between its layers into stages, each on replicas and lanes of its own number."""
    source = captured(model)
    of, operators = layer_of(source), list(source.operators)
    layers = list(dict.fromkeys(name for name in of.values() if name[-1:].isdigit()))
    first = [next(i for i, o in enumerate(operators) if of.get(o) == layer) for layer in layers]
    cuts = [first[len(layers) * k // num_stages] for k in range(1, num_stages)]
    groups = [operators[a:b] for a, b in zip([0, *cuts], [*cuts, len(operators)], strict=True)]
    data, tensor, zero = (row or (least,) * num_stages for row, least in ((data, 1), (tensor, 1), (zero, 0)))
    starts = [sum(data[:s]) for s in range(num_stages)]
    plan = plan_by_hand(
        source,
        groups,
        ranks=[tuple(range(start, start + number)) for start, number in zip(starts, data, strict=True)],
        configs=[StageConfig(data=d, zero=z) for d, z in zip(data, zero, strict=True)],
        schedule={"split": split_backwards, "recompute": with_recompute}.get(schedule, schedule),
        num_microbatches=num_microbatches,
        **options,
    )
    return with_lanes(plan, tensor)


def errors(model: str, num_steps: int = 1, **options: Any) -> dict[str, Any]:
    """Run a divided plan, and compare its last step with one process."""
    plan = layered_plan(model, **options)
    batch = load_model(model, plan.batch.global_size)
    with Pipeline(plan, load_model(model, plan.batch.global_size), parallelize=parallelize) as pipe:
        for _ in range(num_steps):
            pipe.step(batch.kwargs or batch.args, batch.targets)
        found = compare(pipe.worker, batch if pipe.rank == 0 else None)
    return {"gradient": found.max_gradient_error, "loss": found.loss_error, "worst": found.worst_parameter}


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW over all of them, without its fused kernels, which take no mixture of plain and divided parameters."""
    plain, divided = (
        [p for p in parameters if type(p) is nn.Parameter],
        [p for p in parameters if isinstance(p, DTensor)],
    )
    return torch.optim.AdamW([{"params": row} for row in (plain, divided) if row], lr=1e-2)


MAX_NORM = 0.5


def alone(model: str, num_steps: int, num_microbatches: int = 4) -> dict[str, Any]:
    """Train in one process: losses, the last norm, an evaluation, and the weights."""
    size = 2 * num_microbatches
    job = load_model(model, size)
    optimizer, losses, norm = adam(list(job.module.parameters())), [], 0.0
    for _ in range(num_steps):
        optimizer.zero_grad()
        total = 0.0
        for k in range(num_microbatches):
            part = split_batch(job, k, num_microbatches)
            loss = part.evaluate(part.module(*part.args, **part.kwargs), part.targets)[0] / num_microbatches
            loss.backward()
            total += float(loss.detach())
        norm = float(nn.utils.clip_grad_norm_(job.module.parameters(), MAX_NORM))
        optimizer.step()
        losses.append(total)
    job.module.eval()
    with torch.no_grad():
        evaluated = float(job.evaluate(job.module(*job.args, **job.kwargs), job.targets)[0])
    return {"losses": losses, "norm": norm, "evaluated": evaluated, "state": job.module.state_dict()}


def trained(
    model: str, num_steps: int, folder: str = "", save: bool = False, divides: bool = True, **options: Any
) -> dict[str, Any]:
    """Train a divided plan from where a folder stands, save there, and say what `alone` says."""
    plan = layered_plan(model, optimizer="adam", **options)
    batch = load_model(model, plan.batch.global_size)
    made = Pipeline(
        plan,
        load_model(model, plan.batch.global_size),
        optimizer=adam,
        max_norm=MAX_NORM,
        parallelize=parallelize if divides else None,
    )
    with made as pipe:
        first = pipe.load(folder) if folder and Path(folder).exists() else 0
        losses = [pipe.step(batch.kwargs or batch.args, batch.targets) for _ in range(first, num_steps)]
        if save:
            pipe.save(folder)
        evaluated = pipe.evaluate(batch.kwargs or batch.args, batch.targets)
        state = pipe.state_dict()
        moments = pipe.optimizer_state_dict()
    return {"losses": losses, "norm": pipe.worker.norm, "evaluated": evaluated, "state": state, "moments": len(moments)}
