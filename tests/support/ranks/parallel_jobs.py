"""What ranks do where a function of the user's divides their stages: plans by hand, cut between layers."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from costmodel.capture.batches import split_batch
from costmodel.capture.capture import Capture, capture, operator_graph
from costmodel.capture.models import load_model
from costmodel.capture.works import with_works
from costmodel.errors import PenstockError
from costmodel.stages.config import StageConfig
from executor import Pipeline
from executor.observe.check import compare
from executor.run import CHECK_PATIENCE
from planner.candidate.gathering import with_gathering
from planner.plan import REPLICATE, Plan
from planner.plan.parts import COLLECTIVES
from planner.plan.rank_order import RANK_ORDER, RankOrder, ranks_of_places
from tests.properties.module_promises import layer_of
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand, split_backwards, with_lanes, with_recompute

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


def experts_apart(stage: nn.Module, mesh: DeviceMesh, config: StageConfig) -> None:
    """Give each replica experts of its own of a stage of Hugging Face's Mixtral, and divide the rest as planned."""
    own: set[nn.Parameter] = set()
    found: list[Any] = [module for module in stage.modules() if hasattr(module, "gate_up_proj")]
    for experts in found:
        for name, weight in list(experts.named_parameters()):
            part = distribute_tensor(weight.detach(), mesh["data"], [Shard(0)], src_data_rank=None)
            experts.register_parameter(name, nn.Parameter(part))
        experts.forward = partial(dispatched, experts, mesh["data"].get_group())
        own |= set(experts.parameters())
    for module in (*layers_of(stage), stage) if config.zero > 1 else ():
        fully_shard(module, mesh=mesh["data"], ignored_params=own)


def experts_folded(stage: nn.Module, mesh: DeviceMesh, config: StageConfig) -> None:
    """Give each rank experts of its own of a stage of Hugging Face's Mixtral, tensor ranks too, which share tokens."""
    among = mesh if config.num_expert_parts > config.tensor else mesh["tensor"]
    group = dist.group.WORLD if among is mesh else among.get_group()
    experts: Any
    for experts in [module for module in stage.modules() if hasattr(module, "gate_up_proj")]:
        for name, weight in list(experts.named_parameters()):
            part = distribute_tensor(weight.detach(), among, [Shard(0)] * among.ndim, src_data_rank=None)
            experts.register_parameter(name, nn.Parameter(part))
        experts.forward = partial(dispatched_by_lanes, experts, mesh["tensor"], group)
    attention = {path: style for path, style in TENSOR_PLAN.items() if path.startswith("self_attn")}
    for layer in layers_of(stage):
        parallelize_module(layer, mesh["tensor"], {path: style() for path, style in attention.items()})


def dispatched_by_lanes(
    experts: Any, lanes: DeviceMesh, group: Any, x: torch.Tensor, index: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    """Have each lane send its part of the tokens, and give all of them to each."""
    whole = (DTensor.from_local(value, lanes, [Replicate()], run_check=False) for value in (x, index, gates))
    own = dispatched(experts, group, *(value.redistribute(placements=[Shard(0)]).to_local() for value in whole))
    made = DTensor.from_local(own, lanes, [Shard(0)], run_check=False)
    return made.redistribute(placements=[Replicate()]).to_local()


def dispatched(experts: Any, group: Any, x: torch.Tensor, index: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """Send each token to the replicas that have its experts, and what they make of it back."""
    chosen, num_chosen = index.flatten(), index.shape[1]
    order, counts = chosen.argsort(stable=True), chosen.bincount(minlength=experts.num_experts)
    arriving = all_to_all_single(counts, None, None, group).view(group.size(), -1)
    sent, got = counts.view(group.size(), -1).sum(1).tolist(), arriving.sum(1).tolist()
    tokens = all_to_all_single_autograd(x[order // num_chosen], got, sent, group)
    of = torch.arange(arriving.shape[1]).repeat(group.size()).repeat_interleave(arriving.flatten())
    up, down, made = experts.gate_up_proj.to_local(), experts.down_proj.to_local(), torch.zeros_like(tokens)
    for expert in range(len(up)):
        rows = (of == expert).nonzero().flatten()
        gate, value = F.linear(tokens[rows], up[expert]).chunk(2, dim=-1)
        made = made.index_add(0, rows, F.linear(experts.act_fn(gate) * value, down[expert]))
    back = all_to_all_single_autograd(made, sent, got, group)
    return torch.zeros_like(x).index_add(0, order // num_chosen, back * gates.flatten()[order, None])


def as_torchtitan(stage: nn.Module, mesh: DeviceMesh, config: StageConfig) -> None:
    """Divide the zoo's Llama as torchtitan does its own: sequences too, blocks run again, compiled, then FSDP."""
    whole: Any = stage
    layers: nn.ModuleList = whole.layers
    if config.tensor > 1:
        outer = {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        plan = {name: style for name, style in outer.items() if getattr(whole, name) is not None}
        parallelize_module(stage, mesh["tensor"], plan)
        for layer in layers:
            parallelize_module(layer, mesh["tensor"], {
                "norm_attention": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                "attention.query": ColwiseParallel(), "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(), "attention.project": RowwiseParallel(output_layouts=Shard(1)),
                "norm_ffn": SequenceParallel(),
                "ffn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "ffn.gate": ColwiseParallel(), "ffn.up": ColwiseParallel(),
                "ffn.down": RowwiseParallel(output_layouts=Shard(1)),
            })  # fmt: skip
    for name, layer in list(layers.named_children()):
        wrapped = checkpoint_wrapper(layer)
        if config.tensor == 1:  # torch 2.13 fails to compile what saves a collective's result
            wrapped = torch.compile(wrapped, backend="aot_eager")
        layers.register_module(name, wrapped)
    if config.zero > 1:
        for layer in layers:
            fully_shard(layer, mesh=mesh["data"])
        fully_shard(stage, mesh=mesh["data"])


def crossed(stage: nn.Module, mesh: DeviceMesh, config: StageConfig) -> None:
    """Divide weights among replicas, which is what lanes are for."""
    for layer in layers_of(stage):
        parallelize_module(layer, mesh["data"], {"mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()})


def forgetful(stage: nn.Module, mesh: DeviceMesh, config: StageConfig) -> None:
    """Divide sequences of the zoo's Llama, and forget one of the norms that then see a part."""
    as_torchtitan(stage, mesh, config)
    whole: Any = stage
    for layer in whole.layers:
        norm = layer.get_submodule("_checkpoint_wrapped_module").norm_ffn
        norm.weight = nn.Parameter(norm.weight.full_tensor().detach())
        norm._forward_pre_hooks.clear()
        norm._forward_hooks.clear()


FUNCTIONS: dict[str, Any] = {
    "forgetful": forgetful,
    "crossed": crossed,
    "untied": lambda stage, *_: stage.register_parameter("extra", nn.Parameter(torch.ones(1))),
    "other": lambda stage, *_: nn.Sequential(stage),
    "blocks": parallelize,
    "torchtitan": as_torchtitan,
    "experts": experts_apart,
    "folded": experts_folded,
    "whole": lambda stage, mesh, _: fully_shard(stage, mesh=mesh["data"]),
    "nothing": lambda *_: None,
    "none": None,
}


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
    shard_group: int = 0,
    schedule: str = "graph-1f1b",
    num_microbatches: int = 4,
    behind: str = "",
    border: str = REPLICATE,
    expert: int = 1,
    expert_tensor: int = 0,
    rank_order: RankOrder = RANK_ORDER,
    **options: Any,
) -> Plan:
    """Cut a model where layers begin, or behind a module of theirs, into stages on replicas and lanes of their own.

    More stages than it has layers are cut anywhere. Stages of equally many replicas take the ranks in an order.
    """
    source = captured(model)
    of, operators = layer_of(source), list(source.operators)
    layers = list(dict.fromkeys(name for name in of.values() if name[-1:].isdigit()))
    first = [next(i for i, o in enumerate(operators) if of.get(o) == layer) for layer in layers]
    cuts = [first[len(layers) * k // num_stages] for k in range(1, num_stages)]
    if behind:
        cuts = [next(i for i in range(cut, len(operators)) if source.groups[operators[i]].module.endswith(behind)) + 1
                for cut in cuts]  # fmt: skip
    groups = [operators[a:b] for a, b in zip([0, *cuts], [*cuts, len(operators)], strict=True)]
    groups = groups if num_stages <= len(layers) else in_equal_runs(operators, num_stages)
    data, tensor, zero = (row or (least,) * num_stages for row, least in ((data, 1), (tensor, 1), (zero, 0)))
    starts = [sum(data[:s]) for s in range(num_stages)]
    ranks = [tuple(range(start, start + number)) for start, number in zip(starts, data, strict=True)]
    if rank_order != RANK_ORDER:
        ranks = ranks_of_places(StageConfig(data=data[0]), num_stages, rank_order)
    plan = plan_by_hand(
        source,
        groups,
        ranks=ranks,
        configs=[
            StageConfig(
                data=d,
                expert=expert,
                zero=z,
                recompute="full" if schedule == "recompute" and s % 2 == 0 else "none",
                shard_group=shard_group,
            )
            for s, (d, z) in enumerate(zip(data, zero, strict=True))
        ],
        schedule={"split": split_backwards, "recompute": with_recompute}.get(schedule, schedule),
        num_microbatches=num_microbatches,
        **options,
    )
    plan = replace(plan, edges=tuple(replace(edge, border=border) for edge in plan.edges))
    return with_lanes(plan, tensor, expert_tensor)


TOWERS = "tests.support.training_models:towers"


def graph_errors(schedule: str, **degrees: int) -> dict[str, Any]:
    """Run two towers and what joins them, the third stage on the first one's ranks, and compare with one process."""
    source = captured(TOWERS)
    stage_of = {"left": 0, "right": 1}
    groups: list[list[str]] = [[], [], []]
    for name in source.operators:
        module = source.groups[name].module.split(".")[0] if name in source.groups else ""
        groups[stage_of.get(module, 2)].append(name)
    config = StageConfig(data=2, **degrees)
    plan = plan_by_hand(
        source,
        groups,
        ranks=[(0, 1), (2, 3), (0, 1)],
        configs=[config] * 3,
        schedule={"split": split_backwards}.get(schedule, schedule),
    )
    return _compared(plan, TOWERS, 1, None)


def errors(model: str, num_steps: int = 1, how: str = "blocks", **options: Any) -> dict[str, Any]:
    """Run a divided plan, and compare its last step with one process."""
    return _compared(layered_plan(model, **options), model, num_steps, FUNCTIONS[how])


def _compared(plan: Plan, model: str, num_steps: int, parallelize: Any) -> dict[str, Any]:
    batch = load_model(model, plan.batch.global_size)
    with Pipeline(plan, load_model(model, plan.batch.global_size), parallelize=parallelize) as pipe:
        for _ in range(num_steps):
            pipe.step(batch.kwargs or batch.args, batch.targets)
        with pipe.together("the check", CHECK_PATIENCE):
            found = compare(pipe.worker, batch if pipe.rank == 0 else None)
    return {"gradient": found.max_gradient_error, "loss": found.loss_error, "worst": found.worst_parameter}


class Counting(TorchDispatchMode):
    """Counts what is gathered, scattered and summed by modules within the block, and its bytes, whole.

    And the bytes of values that are sent to experts and back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = {kind: [0, 0] for kind in COLLECTIVES}
        self.sent_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket._qualified_op_name
        for kind, whole in (("all_gather", 0), ("reduce_scatter", 1)):
            if name.startswith("c10d::") and name.endswith(f"{kind.replace('all_', 'all')}_base_"):
                self.found[kind][0] += 1
                self.found[kind][1] += args[whole].nbytes
        if name == "_c10d_functional::all_to_all_single" and args[0].is_floating_point():
            self.sent_bytes += args[0].nbytes
        if name.startswith(("_c10d_functional::all_reduce", "c10d::allreduce_")):
            summed = args[0] if isinstance(args[0], torch.Tensor) else args[0][0]  # of lanes, and of shard groups
            self.found["all_reduce"][0] += 1
            self.found["all_reduce"][1] += summed.nbytes
        return func(*args, **(kwargs or {}))


def collectives(model: str, **options: Any) -> list[tuple[dict[str, list[int]], dict[str, list[int]]]]:
    """Return what this rank has gathered and scattered in each of three steps, beside what its plan says of it."""
    plan = _with_sums_of_lanes(layered_plan(model, **options), captured(model))
    batch = load_model(model, plan.batch.global_size)
    rows = []
    with Pipeline(plan, load_model(model, plan.batch.global_size)) as pipe:
        for _ in range(3):
            with Counting() as counting:
                pipe.step(batch.kwargs or batch.args, batch.targets)
            rows.append((counting.found, planned_collectives(plan, pipe.rank)))
    return rows


def sent_to_experts(model: str, how: str, **options: Any) -> int:
    """Return the bytes of values that this rank sends to experts and back in a step."""
    plan = layered_plan(model, **options)
    batch = load_model(model, plan.batch.global_size)
    with Pipeline(plan, load_model(model, plan.batch.global_size), parallelize=FUNCTIONS[how]) as pipe:
        pipe.step(batch.kwargs or batch.args, batch.targets)
        with Counting() as counting:
            pipe.step(batch.kwargs or batch.args, batch.targets)
    return counting.sent_bytes


def _with_sums_of_lanes(plan: Plan, source: Capture) -> Plan:
    """Let a plan that is made by hand say what its lanes sum, for which operators must say how they divide."""
    if all(stage.config.tensor == 1 for stage in plan.stages):
        return plan
    graph = with_works(operator_graph(source, (plan.batch.microbatch_size,)), source)
    sizes, count = [tensor.size_bytes[0] for tensor in graph.tensors], plan.batch.num_microbatches
    return replace(plan, stages=tuple(
        with_gathering(stage, graph, [graph.index[name] for name in stage.operators], count // stage.config.data, sizes)
        for stage in plan.stages
    ))  # fmt: skip


def planned_collectives(plan: Plan, rank: int) -> dict[str, list[int]]:
    """Return number and bytes of each kind that a rank's stages have in a step by their plan."""
    planned = {kind: [0, 0] for kind in COLLECTIVES}
    for each in (each for stage in plan.stages if rank in stage.ranks for each in stage.collectives):
        planned[each.kind] = [a + b for a, b in zip(planned[each.kind], (each.count, each.size_bytes), strict=True)]
    return planned


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW that steps all of them at once."""
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=True)


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
    model: str, num_steps: int, folder: str = "", save: bool = False, how: str = "blocks", **options: Any
) -> dict[str, Any]:
    """Train a divided plan from where a folder stands, save there, and say what `alone` says."""
    plan = layered_plan(model, optimizer="adam", **options)
    batch = load_model(model, plan.batch.global_size)
    made = Pipeline(
        plan,
        load_model(model, plan.batch.global_size),
        optimizer=adam,
        max_norm=MAX_NORM,
        parallelize=FUNCTIONS[how],
    )
    with made as pipe:
        first = pipe.load(folder) if folder and Path(folder).exists() else 0
        losses = [pipe.step(batch.kwargs or batch.args, batch.targets) for _ in range(first, num_steps)]
        if save:
            pipe.save(folder)
            pipe.evaluate(batch.kwargs or batch.args, batch.targets)
            pipe.load(folder)
        evaluated = pipe.evaluate(batch.kwargs or batch.args, batch.targets)
        state = pipe.state_dict()
        moments = pipe.optimizer_state_dict()
    return {
        "losses": losses,
        "norm": float(pipe.worker.gradients.norm),
        "evaluated": evaluated,
        "state": state,
        "moments": len(moments),
    }


def refused(model: str, how: str, **options: Any) -> str:
    """Return what this rank refuses a plan with, at the start or after the first step; nothing where it runs."""
    plan = layered_plan(model, **options)
    batch = load_model(model, plan.batch.global_size)
    try:
        with Pipeline(plan, load_model(model, plan.batch.global_size), parallelize=FUNCTIONS[how]) as pipe:
            pipe.step(batch.kwargs or batch.args, batch.targets)
            return ""
    except PenstockError as error:
        return str(error)


def dies(model: str, **options: Any) -> None:
    """Run steps, in the second of which rank 1 dies."""
    plan = layered_plan(model, **options)
    batch = load_model(model, plan.batch.global_size)
    with Pipeline(plan, load_model(model, plan.batch.global_size), parallelize=parallelize) as pipe:
        pipe.step(batch.kwargs or batch.args, batch.targets)
        if pipe.rank == 1:
            os._exit(1)
        pipe.step(batch.kwargs or batch.args, batch.targets)


def held_bytes(model: str, **options: Any) -> tuple[int, int]:
    """Return the bytes of all parameters that a rank's worker refers to, and of its stages' parameters when whole."""
    plan = layered_plan(model, **options)
    with Pipeline(plan, load_model(model, plan.batch.global_size), parallelize=parallelize) as pipe:
        worker = pipe.worker
        known = {name: worker.capture.parameter(name) for name in worker.parameters}
        tensors = {id(t): t for row in (worker.held, worker.own, worker.parameters, known) for t in row.values()}
        return sum(map(_own_bytes, tensors.values())), sum(p.numel() * 4 for p in worker.parameters.values())


def _own_bytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()
