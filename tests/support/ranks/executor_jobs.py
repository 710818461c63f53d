"""What ranks do for the executor's tests; every rank makes the same plan by itself."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

import executor.worker
from costmodel.capture.batches import TrainingModel, split_batch
from costmodel.capture.capture import Capture, capture, operator_graph
from costmodel.capture.models import load_model
from costmodel.stages.config import StageConfig
from executor import Pipeline
from executor.communication.transport import Transport
from executor.gradients.optimizer import OPTIMIZERS
from executor.observe.check import compare
from planner.checker import check_plan
from planner.plan import Plan, read_plan
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand, split_backwards, with_recompute
from tests.support.random_training import captured_random, random_model, random_real_plan
from tests.support.ranks.strict_transport import StrictTransport


@cache
def captured(model: str) -> Capture:
    return capture(load_model(f"tests.support.training_models:{model}", 4))


def make_plan(model: str, num_stages: int = 3, configs: Sequence[dict[str, Any]] | None = None, **options: Any) -> Plan:
    source = captured(model)
    groups = options.pop("groups", None) or in_equal_runs(source.operators, num_stages)
    made = [StageConfig(**config) for config in configs] if configs else None
    schedule = options.pop("schedule", "graph-1f1b")
    made_by = {"split": split_backwards, "recompute": with_recompute}.get(schedule, schedule)
    return plan_by_hand(source, groups, configs=made, schedule=made_by, **options)


def whole_batch(model: str, plan: Plan) -> TrainingModel:
    return load_model(f"tests.support.training_models:{model}", plan.batch.global_size)


def errors(
    model: str, num_steps: int = 1, undivided: bool = False, autocast: torch.dtype | None = None, **options: Any
) -> dict[str, Any]:
    """Run a plan and compare its last step with one process, or with one batch that is not divided."""
    plan = make_plan(model, **options)
    batch = whole_batch(model, plan)
    source = captured(model)
    source, batch = (replace(source, model=replace(source.model, autocast=autocast)), replace(batch, autocast=autocast))
    with Pipeline(plan, source) as pipeline:
        for _ in range(num_steps):
            pipeline.step(batch.kwargs or batch.args, batch.targets)
        reference = batch if pipeline.rank == 0 else None
        found = compare(pipeline.worker, reference, 1 if undivided else None)
    return {"gradient": found.max_gradient_error, "loss": found.loss_error, "worst": found.worst_parameter}


def file_errors(path: str, spec: str) -> dict[str, Any]:
    """Run one step of a plan file on a model of any spec and compare it with one process."""
    plan = read_plan(path)
    with Pipeline(plan, load_model(spec, plan.batch.global_size)) as pipeline:
        batch = load_model(spec, plan.batch.global_size)
        pipeline.step(batch.kwargs or batch.args, batch.targets)
        found = compare(pipeline.worker, batch if pipeline.rank == 0 else None)
    return {"gradient": found.max_gradient_error, "loss": found.loss_error, "worst": found.worst_parameter}


def batches(model: str, size: int, num_steps: int) -> list[TrainingModel]:
    """One batch of `size` a step, each another one."""
    whole = load_model(f"tests.support.training_models:{model}", size * num_steps)
    return [split_batch(whole, step, num_steps) for step in range(num_steps)]


def accumulate(module: torch.nn.Module, batch: TrainingModel, count: int) -> float:
    """Add the gradients of a batch in `count` micro-batches in one process; return the mean loss."""
    total = 0.0
    for index in range(count):
        part = split_batch(batch, index, count)
        loss, _ = part.evaluate(module(*part.args, **part.kwargs), part.targets)
        (loss / count).backward()
        total += float(loss.detach()) / count
    return total


def plain_losses(
    model: str, num_steps: int, max_norm: float | None = None, make: Any = None, **options: Any
) -> list[float]:
    """Losses of a training loop in one process, with the same micro-batches."""
    plan = make_plan(model, **options)
    steps = batches(model, plan.batch.global_size, num_steps)
    module, count = steps[0].module, plan.batch.num_microbatches
    optimizer = (make or partial(torch.optim.Adam, lr=0.01))(list(module.parameters()))
    losses = []
    for batch in steps:
        optimizer.zero_grad()
        losses.append(accumulate(module, batch, count))
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)
        optimizer.step()
    return losses


def train(
    model: str,
    num_steps: int,
    first_step: int = 0,
    stop_step: int | None = None,
    state: dict[str, Any] | None = None,
    max_norm: float | None = None,
    example: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Train by a user's own loop around a pipeline; from a saved state if one is given."""
    plan = make_plan(model, **options)
    steps = batches(model, plan.batch.global_size, num_steps)
    source, losses, optimizer = steps[0], [], None
    given = {"inputs": source.kwargs or source.args, "targets": source.targets} if example else {}
    with Pipeline.from_plan(plan, source.module, source.loss, **given) as pipe:
        for batch in steps[first_step:stop_step]:
            if optimizer is None and example:
                optimizer = start(pipe, state)
            losses.append(pipe.step(batch.kwargs or batch.args, batch.targets))
            if max_norm is not None:
                pipe.clip_grad_norm_(max_norm)
            optimizer = optimizer or start(pipe, state)
            optimizer.step()
        saved = {"model": pipe.state_dict(), "optimizer": pipe.optimizer_state_dict(optimizer)}
        return {"losses": losses, "state": saved, "needed": pipe.inputs_needed}


def reloaded(model: str, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Load a plain model's state and save it again."""
    with Pipeline(make_plan(model, **options), captured(model)) as pipe:
        pipe.load_state_dict(state)
        return pipe.state_dict()


def start(pipe: Pipeline, state: dict[str, Any] | None) -> torch.optim.Optimizer:
    if state is not None:
        pipe.load_state_dict(state["model"])
    optimizer = torch.optim.Adam(pipe.parameters(), lr=0.01)
    if state is not None:
        pipe.load_optimizer_state_dict(state["optimizer"], optimizer)
    return optimizer


def random_errors(seed: int, strict: bool = False) -> dict[str, Any]:
    """Run a random plan of a random model and compare it with one process."""
    executor.worker.Transport = StrictTransport if strict else Transport
    plan = random_real_plan(seed, torch.distributed.get_world_size())
    number = int(plan.model_name.removeprefix("random"))
    source, batch = captured_random(number), random_model(number, plan.batch.global_size)
    problems = check_plan(plan, operator_graph(source, (plan.batch.microbatch_size,)))
    assert not problems, problems
    with Pipeline(plan, source) as pipeline:
        for _ in range(2):
            pipeline.step(batch.args)
        found = compare(pipeline.worker, batch if pipeline.rank == 0 else None)
    return {"gradient": found.max_gradient_error, "loss": found.loss_error, "worst": found.worst_parameter}


def trained_by_the_plan(model: str, num_steps: int = 3, **options: Any) -> dict[str, Any]:
    """Run a plan that has OPT and return the model's state on rank 0."""
    plan = make_plan(model, **options)
    steps = batches(model, plan.batch.global_size, num_steps)
    with Pipeline(plan, steps[0], optimizer=OPTIMIZERS[options["optimizer"]]) as pipeline:
        for batch in steps:
            pipeline.step(batch.kwargs or batch.args, batch.targets)
        return pipeline.state_dict()


def trained_and_clipped(model: str, max_norm: float, **options: Any) -> dict[str, Any]:
    """Train three steps by a plan that has OPT; losses, and the model's state on rank 0."""
    plan = make_plan(model, **options)
    steps = batches(model, plan.batch.global_size, 3)
    with Pipeline(plan, steps[0], optimizer=OPTIMIZERS[options["optimizer"]], max_norm=max_norm) as pipeline:
        losses = [pipeline.step(batch.kwargs or batch.args, batch.targets) for batch in steps]
        return {"losses": losses, "state": pipeline.state_dict()}


def trained_alone(model: str, num_steps: int = 3, **options: Any) -> dict[str, Any]:
    """The state after the same steps in one process, with the plan's optimizer."""
    plan = make_plan(model, **options)
    steps = batches(model, plan.batch.global_size, num_steps)
    module, count = steps[0].module, plan.batch.num_microbatches
    optimizer = OPTIMIZERS[options["optimizer"]](module.parameters())
    for batch in steps:
        optimizer.zero_grad()
        accumulate(module, batch, count)
        optimizer.step()
    return module.state_dict()


def copies_of_shared_parameters(**options: Any) -> dict[str, float]:
    """Sums of a rank's parameters after a pipeline was made from a model that differs from rank to rank."""
    plan = make_plan("tied_gpt", **options)
    model = load_model("tests.support.training_models:tied_gpt", plan.batch.global_size)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.add_(torch.distributed.get_rank())
    with Pipeline(plan, model) as pipeline:
        return {name: float(parameter.detach().sum()) for name, parameter in pipeline.named_parameters()}
