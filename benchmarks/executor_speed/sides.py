"""What the ranks of `benchmarks.executor_speed` do: one training step by our executor, by torch's pipelining, or plain.

Every side trains its own copy of one chain of transformer layers, with the same cut, micro-batches and order. Torch's
stages are made by hand of the same modules. Leaves out optimizers: all sides end with the gradients.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture, capture, operator_graph
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import Costs
from costmodel.zoo.layers import FusedLayer
from executor import Pipeline
from planner.plan import STEP, Plan
from simulator.actions import parse_action
from simulator.schedule import Schedule, stage_graph
from tests.support.plans_by_hand import plan_by_hand
from tests.support.ranks.live_tensors import LiveTensors
from tests.support.ranks.parallel_jobs import Counting

HIDDEN, HEADS, SEQUENCE, MICROBATCH = 256, 4, 64, 2
LAYERS, MICROBATCHES = 8, 8

SCHEDULES = {
    "gpipe": (ScheduleGPipe, 1),
    "1f1b": (Schedule1F1B, 1),
    "interleaved-1f1b": (ScheduleInterleaved1F1B, 2),
    "interleaved-zb": (ScheduleInterleavedZeroBubble, 2),
    "zb-v": (ScheduleZBVZeroBubble, 2),
}
"""Our name -> torch's class, stages a rank."""

SHARDED = {"zero-2": (2, False, False), "zero-3": (3, True, True), "fsdp": (2, True, False)}
"""Our ZeRO, and whether torch's side lets go of parameters after a forward, and after a backward before the last."""

Step = Callable[[], None]
Times = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """(step time, CPU time) of both sides on one rank, run by run, in ns, and how far their gradients are apart.

    `held` tells where stages are divided who gathers how often in a step, and the most bytes of tensors it has at once.
    """

    ours_ns: Times
    theirs_ns: Times
    gradient_error: float
    shortest_action_ns: int
    held: tuple[tuple[str, int, int], ...] = ()


def pipelined(name: str, num_runs: int) -> Measured:
    """Run a schedule of `SCHEDULES` by both executors in turn, on this rank of the world."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    model, torch_model = chain(), chain()
    stages, schedule, theirs = _torch_side(name, torch_model, rank, num_ranks)
    order = partial(_torch_order, schedule) if isinstance(schedule, PipelineScheduleMulti) else name
    places = [_rank_of(name, stage, num_ranks) for stage in range(len(stages))]
    with Pipeline(_plan(order, stages, [(place,) for place in places]), capture(model, MICROBATCH)) as pipeline:

        def ours() -> None:
            pipeline.step()

        ours_ns, theirs_ns = _in_turn(ours, theirs, num_runs)
        owned = [n for n, _ in pipeline.named_parameters()]
        error = _gradient_error(model.module, torch_model.module, owned)
        actions = _actions_ns(pipeline)
    return Measured(ours_ns, theirs_ns, error, min(actions))


def sharded(name: str, num_runs: int) -> Measured:
    """Run 1F1B of two stages on two replicas each, every layer `fully_shard`, by both executors in turn."""
    zero, *lets_go = SHARDED[name]
    rank = dist.get_rank()
    model, torch_model = chain(), chain()
    halves = [range(LAYERS // 2), range(LAYERS // 2, LAYERS)]
    stage, theirs = _sharded_torch_side(torch_model, halves, *lets_go)
    config = StageConfig(data=2, zero=zero)
    plan = _plan("1f1b", halves, [(0, 1), (2, 3)], configs=[config, config], reduce=STEP)  # as torch sums
    with Pipeline(plan, model) as pipeline:

        def ours() -> None:
            pipeline.step()

        ours_ns, theirs_ns = _in_turn(ours, theirs, num_runs)
        ours()
        theirs()
        found = {name: parameter.grad for name, parameter in pipeline.named_parameters()}
        first = halves[rank // 2].start
        error = 0.0
        for name, parameter in stage.named_parameters():
            layer, rest = name.split(".", 1)
            mine, other = (
                cast(DTensor, g).full_tensor() for g in (found[f"{first + int(layer)}.{rest}"], parameter.grad)
            )
            error = max(error, float((mine - other).abs().max() / other.abs().max()))
        held = tuple((side, *_held(step)) for side, step in (("ours", ours), ("theirs", theirs)))
        actions = _actions_ns(pipeline)
    return Measured(ours_ns, theirs_ns, error, min(actions), held)


def _held(step: Step) -> tuple[int, int]:
    """Return how often a step gathers, and the most bytes of its tensors that are alive at once."""
    live, counting = LiveTensors(), Counting()
    with live, counting:
        step()
    return counting.found["all_gather"][0], live.peak


def _sharded_torch_side(
    model: TrainingModel, halves: Sequence[range], after_forward: bool, after_backward: bool
) -> tuple[nn.Module, Step]:
    """Return this rank's divided stage by torch's pipelining, and its step."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    place, replica = mesh.get_coordinate() or (0, 0)
    layers = list(model.module.children())
    stage = nn.Sequential(*(layers[i] for i in halves[place]))
    for module in (*stage, stage):
        fully_shard(module, mesh=mesh["dp"], reshard_after_forward=after_forward)
        cast(FSDPModule, module).set_force_sum_reduction_for_comms(True)
    if after_backward:  # torch's pipelining switches it off for all but the last
        stage.set_reshard_after_backward = lambda _: None  # type: ignore[assignment]
    made = PipelineStage(stage, place, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(made, MICROBATCHES // 2, loss_fn=F.mse_loss)
    inputs, targets = (
        torch.cat(tensor.split(MICROBATCH)[replica::2]) for tensor in (model.args[0], cast(torch.Tensor, model.targets))
    )

    def step() -> None:
        stage.zero_grad()
        schedule.step(*((inputs,) if place == 0 else ()), target=targets if place else None, return_outputs=False)

    return stage, step


def single(num_runs: int) -> Measured:
    """Run a plan of one stage, and the plain loop over the same micro-batches, in turn."""
    model, plain_model = chain(), chain()
    with Pipeline(_plan("graph-1f1b", [range(LAYERS)], [(0,)]), capture(model, MICROBATCH)) as pipeline:

        def ours() -> None:
            pipeline.step()

        ours_ns, theirs_ns = _in_turn(ours, lambda: _plain_step(plain_model), num_runs)
        names = [n for n, _ in model.module.named_parameters()]
        error = _gradient_error(model.module, plain_model.module, names)
        actions = _actions_ns(pipeline)
    return Measured(ours_ns, theirs_ns, error, min(actions))


def _actions_ns(pipeline: Pipeline) -> list[int]:
    """Return what the computing actions of one more step take."""
    observer = pipeline.observe()
    pipeline.step()
    return [end - start for _, stream, start, end in observer.measured() if stream == "compute"]


def chain() -> TrainingModel:
    """Return a chain of layers with a whole step's batch; the same on every call."""
    torch.manual_seed(0)
    module = nn.Sequential(*(FusedLayer(HIDDEN, HEADS, 4 * HIDDEN) for _ in range(LAYERS)))
    size = MICROBATCH * MICROBATCHES
    inputs, targets = (torch.randn(size, SEQUENCE, HIDDEN) for _ in range(2))
    return TrainingModel("chain", module, (inputs,), {}, targets, True, F.mse_loss, {}, size)


def _rank_of(name: str, stage: int, num_ranks: int) -> int:
    """Return where a stage runs: in a loop, or there and back in a V."""
    back = 2 * num_ranks - 1 - stage
    return min(stage, back) if name == "zb-v" else stage % num_ranks


def _plan(
    schedule: str | Callable[[Costs, int], Schedule],
    stages: Sequence[range],
    ranks: Sequence[tuple[int, ...]],
    **options: Any,
) -> Plan:
    """Return a plan of stages of consecutive layers."""
    source = capture(chain(), MICROBATCH)
    return plan_by_hand(
        source,
        _operators(source, stages),
        ranks=ranks,
        num_microbatches=MICROBATCHES,
        microbatch_size=MICROBATCH,
        schedule=schedule,
        durations_ns=10_000_000,
        **options,
    )


def _operators(source: Capture, stages: Sequence[range]) -> list[list[str]]:
    """Return each stage's operators; the loss belongs to the last."""
    stage_of = {str(layer): s for s, layers in enumerate(stages) for layer in layers}
    groups: list[list[str]] = [[] for _ in stages]
    for operator in operator_graph(source, (MICROBATCH,)).operators:
        groups[stage_of.get(operator.module.split(".")[0], len(stages) - 1)].append(operator.name)
    return groups


def _torch_order(schedule: PipelineScheduleMulti, costs: Costs, num_microbatches: int) -> Schedule:
    """Return torch's own order of computations, which both sides run."""
    graph, order = stage_graph(costs), schedule.pipeline_order
    rows = tuple(tuple(parse_action(str(a)) for a in order[rank] if a is not None) for rank in range(graph.num_ranks))
    return Schedule("torch", graph, num_microbatches, rows)


def _torch_side(name: str, model: TrainingModel, rank: int, num_ranks: int) -> tuple[list[range], Any, Step]:
    """Return all stages' layers, torch's schedule and its step on this rank."""
    kind, chunks = SCHEDULES[name]
    num_stages = num_ranks * chunks
    size = LAYERS // num_stages
    layers = [range(s * size, (s + 1) * size) for s in range(num_stages)]
    modules = list(model.module.children())
    mine = [
        PipelineStage(nn.Sequential(*(modules[i] for i in layers[s])), s, num_stages, torch.device("cpu"))
        for s in range(num_stages)
        if _rank_of(name, s, num_ranks) == rank
    ]
    schedule = kind(mine[0] if chunks == 1 else mine, MICROBATCHES, loss_fn=F.mse_loss)
    arguments = model.args if rank == 0 else ()
    targets = model.targets if rank == _rank_of(name, num_stages - 1, num_ranks) else None

    def step() -> None:
        for stage in mine:
            stage.submod.zero_grad()
        schedule.step(*arguments, target=targets, losses=[] if targets is not None else None, return_outputs=False)

    return layers, schedule, step


def _plain_step(model: TrainingModel) -> None:
    """Accumulate gradients as a training loop does."""
    model.module.zero_grad()
    (inputs,) = model.args
    for part, target in zip(inputs.split(MICROBATCH), model.targets.split(MICROBATCH), strict=True):
        loss = F.mse_loss(model.module(part), target) / MICROBATCHES
        loss.backward()  # type: ignore[no-untyped-call]


def _in_turn(ours: Step, theirs: Step, num_runs: int) -> tuple[Times, Times]:
    """Time both sides in turn after two warm-up runs, which goes first changing from run to run."""
    times: tuple[list[tuple[int, int]], list[tuple[int, int]]] = [], []
    for run in range(-2, num_runs):
        for side in (0, 1) if run % 2 else (1, 0):
            elapsed = _timed((ours, theirs)[side])
            if run >= 0:
                times[side].append(elapsed)
    return tuple(times[0]), tuple(times[1])


def _timed(step: Step) -> tuple[int, int]:
    if dist.get_world_size() > 1:
        dist.barrier()
    start, cpu = time.perf_counter_ns(), time.process_time_ns()
    step()
    return time.perf_counter_ns() - start, time.process_time_ns() - cpu


def _gradient_error(ours: nn.Module, theirs: nn.Module, names: Sequence[str]) -> float:
    """Return the largest difference of a gradient's entry against the largest entry."""
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    found = [(mine[name].grad, other[name].grad) for name in names]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in found if a is not None and b is not None)
