"""torchtitan 0.3.0: a plan that torch's schedules do not run, a stage graph say, run by our executor in its loop.

torchtitan's trainer asks its pipelining function for a schedule and model parts. A rank gets one part, the model's
modules that the plan gives it: the trainer draws their values, loads and saves them, clips and steps them. The schedule
makes an `executor.Pipeline` of that very part at the first step, when its values are there. To torchtitan all ranks are
pipeline ranks, so each reads the whole batch. Leaves out copies of a stage: torchtitan would count their gradients in
the norm once a copy.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from inspect import signature
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TrainingModel
from costmodel.errors import DoesNotMatch
from executor.gradients.clipping import allow_norms_of_parts
from executor.gradients.optimizer import has_opt
from executor.model.capturing import capture_where_built
from executor.pipeline import Pipeline
from executor.plan_match.matching import check_gate, place_in
from executor.plan_match.precision import with_precision
from planner.export.job_configs.key_table import key_table
from planner.export.torchtitan import PIPELINED
from planner.plan import Plan

Inputs = Mapping[str, Any]
"""Arguments of a model's forward by name, tensors with a row a sample."""
IGNORED = -100
"""The target that torchtitan's losses leave out, and do not count."""


def not_executed(plan: Plan) -> str:
    """Return why a plan does not run by the executor in torchtitan's loop; nothing where it does."""
    if "executor" not in plan.runs_on:
        return "the executor does not take it"
    if len(plan.orders) == 1:
        return "it is of one rank, for which torchtitan asks for no schedule"
    if copied := [i for i, stage in enumerate(plan.stages) if len(stage.ranks) > 1]:
        return f"stage {copied[0]} is on several ranks, whose gradients torchtitan's norm would count once a rank"
    ranks: dict[str, set[int]] = {}
    for stage in plan.stages:
        for name in stage.shared:
            ranks.setdefault(name, set()).update(stage.ranks)
    shared = next((name for name, those in ranks.items() if len(those) > 1), "")
    return f"{shared!r} is on several ranks, whose gradient torchtitan's norm would count once a rank" if shared else ""


def executed_settings(plan: Plan) -> dict[str, object]:
    """Return the values that a recipe's configuration gets, by their path in it: all ranks are of one pipeline."""
    alone = dict.fromkeys(("replicate", "shard", "tensor", "context", "expert"), 1)
    batch = {"global_batch": plan.batch.global_size, "local_batch": plan.batch.global_size}
    pipeline = {"stages": len(plan.orders), "schedule": "1F1B", "microbatch_size": plan.batch.microbatch_size}
    table = key_table("torchtitan")
    return {table.key_of(fact): value for fact, value in {**alone, **batch, **pipeline}.items()} | PIPELINED


def executed(plan: Plan, inputs: Inputs | None = None) -> Any:
    """Return a pipelining function of torchtitan's under which the executor runs a plan."""

    def pipeline(
        model: nn.Module, *, training: Any, device: torch.device, loss_fn: Any, **_: Any
    ) -> tuple["ExecutedSchedule", list[nn.Module], bool, bool]:
        if hasattr(loss_fn, "set_lm_head"):
            raise DoesNotMatch(
                f"{type(loss_fn).__name__} computes a part of the model itself, which the plan gives to a stage; "
                "configure the loss that it wraps"
            )
        whole, example = deepcopy(model), inputs or _tokens(model, plan.batch.global_size, training.seq_len)
        schedule = ExecutedSchedule(plan, whole, model, loss_fn, device)
        homes, rank = _homes(plan, schedule.training_model(example, None)), place_in()[0]
        _keep(model, {id(parameter) for name, parameter in model.named_parameters() if homes[name] == rank})
        return schedule, [model], True, True

    return pipeline


def _tokens(model: nn.Module, batch: int, length: int) -> Inputs:
    """Return a batch as torchtitan's loaders of text make it: tokens for the first argument, and their positions."""
    first, *others = signature(model.forward).parameters
    names = (first, *(name for name in others if name == "positions"))
    return {name: torch.zeros(batch, length, dtype=torch.int64, device="meta") for name in names}


class ExecutedSchedule:
    """What torchtitan's trainer and validator call of a pipeline schedule.

    Parameters
    ----------
    plan : Plan
    whole : torch.nn.Module
        The model on meta.
    part : torch.nn.Module
        The same without what other ranks hold, which gets its values before the first step.
    loss_fn : callable
        (output, targets) -> (sum over the targets, metrics).
    device : torch.device
    """

    def __init__(self, plan: Plan, whole: nn.Module, part: nn.Module, loss_fn: Any, device: torch.device) -> None:
        self._plan, self._whole, self._part, self._loss_fn, self._device = plan, whole, part, loss_fn, device
        self._pipeline: Pipeline | None = None

    def step(
        self,
        *,
        arg_mbs: Sequence[tuple[Any, ...]],
        kwarg_mbs: Sequence[Mapping[str, Any]],
        target_mbs: Sequence[torch.Tensor],
        losses: list[torch.Tensor],
        **_: Any,
    ) -> None:
        """Leave the gradients of a batch's mean loss in the part's parameters, and append that loss."""
        inputs, targets = self._batch(arg_mbs, kwarg_mbs, target_mbs)
        losses.append(torch.tensor(self._started(inputs, targets).step(inputs, targets)))

    def eval(
        self,
        *,
        arg_mbs: Sequence[tuple[Any, ...]],
        kwarg_mbs: Sequence[Mapping[str, Any]],
        target_mbs: Sequence[torch.Tensor],
        losses: list[torch.Tensor],
    ) -> None:
        """Append the sum of a batch's losses."""
        inputs, targets = self._batch(arg_mbs, kwarg_mbs, target_mbs)
        loss = self._started(inputs, targets).evaluate(inputs, targets)
        losses.append(loss * _num_counted(targets))

    def close(self) -> None:
        """Leave together with all other ranks, as the end of the program does by itself."""
        if self._pipeline is not None:
            self._pipeline.close()

    def _batch(
        self,
        args: Sequence[tuple[Any, ...]],
        kwargs: Sequence[Mapping[str, Any]],
        targets: Sequence[torch.Tensor],
    ) -> tuple[Inputs, torch.Tensor]:
        """Return the inputs of a batch by name, and its targets, of those of its micro-batches."""
        names = signature(self._whole.forward)
        rows = [names.bind(*one, **named).arguments for one, named in zip(args, kwargs, strict=True)]
        return pytree.tree_map(lambda *parts: torch.cat(parts), *map(dict, rows)), torch.cat(list(targets))

    def _started(self, inputs: Inputs, targets: torch.Tensor) -> Pipeline:
        """Return the pipeline, made of the part's own parameters with the first batch."""
        if self._pipeline is None:
            _fill(self._whole, self._part, self._device)
            model = self.training_model(inputs, targets)
            optimizer = _idle if has_opt(self._plan) else None
            self._pipeline = Pipeline(self._plan, model, device=self._device, optimizer=optimizer)
            self._pipeline.worker.keeps_gradients = True
            allow_norms_of_parts(self._pipeline.worker.parameters)
        return self._pipeline

    def training_model(self, inputs: Inputs, targets: torch.Tensor | None) -> TrainingModel:
        """Return the whole model with a batch, as the executor takes it."""
        batch, name = next(len(tensor) for tensor in inputs.values()), type(self._part).__name__
        return TrainingModel(name, self._whole, (), inputs, targets, targets is not None, self._loss, {}, batch)

    def _loss(self, output: Any, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum over the targets, and how many they are."""
        return self._loss_fn(output, targets)[0], _num_counted(targets)


def _num_counted(targets: torch.Tensor) -> torch.Tensor:
    return (targets != IGNORED).sum()


class IdleOptimizer(torch.optim.Optimizer):
    """What steps where a plan has OPT: nothing, as torchtitan steps behind the whole step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


def _idle(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return IdleOptimizer(parameters, {})


def _homes(plan: Plan, model: TrainingModel) -> dict[str, int]:
    """Return the rank that reads each parameter of a model on meta, which is found to be the plan's."""
    captured = capture_where_built(with_precision(plan, model), plan.batch.microbatch_size, values_follow=True)
    check_gate(plan, captured)
    groups = captured.groups
    found = {
        name: stage.ranks[0]
        for stage in plan.stages
        for operator in stage.operators
        if operator in groups
        for name in groups[operator].parameters
    }
    if unread := next((name for name, _ in model.module.named_parameters() if name not in found), ""):
        raise DoesNotMatch(f"no stage reads the parameter {unread!r}, so that no rank would save it; drop it")
    if idle := set(range(len(plan.orders))) - set(found.values()):
        raise DoesNotMatch(
            f"rank {min(idle)} holds no parameters, and torchtitan makes an optimizer on each; plan for fewer ranks"
        )
    return found


def _keep(module: nn.Module, own: set[int]) -> None:
    """Drop parameters that are not this rank's `own` (by id), and the modules that have no parameters but such."""
    for name, parameter in module._parameters.items():
        if id(parameter) not in own:
            module._parameters[name] = None
    for name, child in list(module.named_children()):
        inner = set(map(id, child.parameters()))
        if not inner or not inner.isdisjoint(own):
            _keep(child, own)
        elif isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            del module._modules[name]
        else:
            setattr(module, name, None)


def _fill(whole: nn.Module, part: nn.Module, device: torch.device) -> None:
    """Put a part's tensors in a model on meta, and ones that take no memory for all others."""
    own = dict(chain(part.named_parameters(remove_duplicate=False), part.named_buffers(remove_duplicate=False)))
    made: dict[int, torch.Tensor] = {}
    for path, module in whole.named_modules(remove_duplicate=False):
        rows: dict[str, Any]
        for rows in (module._parameters, module._buffers):
            for name, tensor in rows.items():
                if tensor is not None and tensor.is_meta:
                    here = own.get(f"{path}.{name}".lstrip("."))
                    rows[name] = made.setdefault(id(tensor), _empty(tensor, device)) if here is None else here


def _empty(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor like one on meta whose entries are all the same one."""
    alike = torch.zeros((), dtype=tensor.dtype, device=device).expand(tensor.shape)
    return nn.Parameter(alike, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else alike
