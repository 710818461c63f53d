"""``--check``: the gradients of one step against one process that runs the same micro-batches in the same order.

The reference is rank 0's alone: the whole model in eager mode, a backward a micro-batch, accumulated. Owners
send it their gradients, one parameter at a time. Leaves out models that draw random numbers: their
micro-batches differ between ranks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from costmodel.capture.batches import TrainingModel, split_batch
from executor.losses import StepLoss
from executor.worker import Worker

LIMIT = 1e-5
"""Largest gradient error that passes."""

_FLOOR = 1e-4
"""A parameter's own largest gradient counts as at least this share of the largest of all (CONTRACT)."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far a step was from its reference."""

    max_gradient_error: float
    loss_error: float
    loss: float
    worst_parameter: str


def compare(
    worker: Worker, loss: StepLoss, reference: TrainingModel | None, num_microbatches: int | None = None
) -> Comparison:
    """Compare the last step's gradients with a reference; collective.

    Parameters
    ----------
    worker : Worker
    loss : StepLoss
        The step's loss over all ranks.
    reference : TrainingModel or None
        On rank 0 the unsplit model as it was before the step, with the batch of the step; None elsewhere.
    num_microbatches : int, optional
        Of the reference; default: the plan's.
    """
    value = loss.total / loss.weight
    count = num_microbatches or worker.plan.batch.num_microbatches
    expected = _reference_step(reference, count) if reference is not None else 0.0
    names = dict(reference.module.named_parameters()) if reference is not None else {}
    errors: dict[str, tuple[float, float]] = {}
    for name, gradient in _gathered(worker, names):
        if name in names:
            errors[name] = _difference(gradient, names[name].grad)
    largest = max((size for _, size in errors.values()), default=0.0)
    relative = {name: error / max(size, _FLOOR * largest, 1e-300) for name, (error, size) in errors.items()}
    worst = max(relative, key=lambda name: relative[name], default="")
    loss_error = abs(value - expected) / max(abs(expected), 1e-300)
    numbers = torch.tensor([relative.get(worst, 0.0), loss_error], dtype=torch.float64)
    if len(worker.plan.orders) > 1:
        dist.broadcast(numbers, 0)
    return Comparison(float(numbers[0]), float(numbers[1]), value, worst)


def _reference_step(model: TrainingModel, num_microbatches: int) -> float:
    """Run all micro-batches one after the other, leave gradients in ``.grad`` and return the loss."""
    model.module.zero_grad(set_to_none=True)
    total = weights = 0.0
    weighted = False
    for index in range(num_microbatches):
        batch = split_batch(model, index, num_microbatches)
        with model.casting():
            output = model.module(*batch.args, **batch.kwargs)
        loss, weight = model.evaluate(output, batch.targets)
        weighted = weight is not None
        share = 1.0 if weighted else 1.0 / num_microbatches
        if loss.requires_grad:
            loss.backward(torch.full_like(loss, share))  # type: ignore[no-untyped-call]
        total += float(loss.detach()) * share
        weights += 0.0 if weight is None else float(weight)
    if weighted:
        for parameter in model.module.parameters():
            if parameter.grad is not None:
                parameter.grad /= weights
    return total / weights if weighted else total


def _gathered(worker: Worker, reference: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield every trainable parameter's gradient on rank 0, each rank's own elsewhere; collective."""
    for name, owner in worker.lowest_owners().items():
        if worker.rank == owner:
            gradient = worker.parameters[name].grad
            found = None if gradient is None else gradient.detach().cpu().contiguous()
            if owner:
                parameter = worker.parameters[name]
                dist.send(torch.zeros(parameter.shape, dtype=parameter.dtype) if found is None else found, 0)
            yield name, found
        elif worker.rank == 0:
            arrived = torch.empty_like(reference[name], device="cpu", memory_format=torch.contiguous_format)
            dist.recv(arrived, owner)
            yield name, arrived


def _difference(found: torch.Tensor | None, expected: torch.Tensor | None) -> tuple[float, float]:
    """Return max|a - b| and max|b|; a gradient that is not there counts as zeros."""
    if expected is None and found is None:
        return 0.0, 0.0
    if expected is None or found is None:
        there = expected if found is None else found
        size = float(there.abs().max()) if there is not None else 0.0
        return size, size if found is None else 0.0
    expected = expected.detach().cpu()
    return float((found - expected).abs().max()), float(expected.abs().max())
