"""``--check``: the gradients of one step against one process that runs the same micro-batches in the same order.

The reference is rank 0's alone: the whole model in eager mode, a backward a micro-batch, accumulated; one that draws
random numbers runs as it was captured, with the numbers that the ranks drew. Owners send it their gradients, one
parameter at a time. Leaves out what a loss of the user's draws by itself.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from costmodel.capture.batches import TrainingModel, split_batch
from costmodel.capture.capture import capture
from costmodel.capture.parts import LOSS_WEIGHT, Part, extract
from costmodel.model.graph import LOSS
from executor.stages.randomness import Draws, seeded_part
from executor.stages.user_parallelize import full
from executor.worker import Worker

LIMIT, LIMIT_16 = 1e-5, 2e-2
"""Largest gradient error that passes, and the one of a step that computes in sixteen bits."""

_FLOOR = 1e-4
"""A parameter's own largest gradient counts as at least this share of the largest of all."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a step was from its reference, and how far it may be."""

    max_gradient_error: float
    loss_error: float
    loss: float
    worst_parameter: str
    limit: float


@contextmanager
def deterministic() -> Iterator[None]:
    """Choose kernels that always add in one order, where torch has such."""
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def compare(worker: Worker, reference: TrainingModel | None, num_microbatches: int | None = None) -> Difference:
    """Compare the last step's gradients with a reference; collective.

    Parameters
    ----------
    worker : Worker
    reference : TrainingModel or None
        On rank 0 the unsplit model as it was before the step, with the batch of the step; None elsewhere.
    num_microbatches : int, optional
        Of the reference; default: the plan's.
    """
    assert worker.loss is not None
    value = worker.loss.value
    count = num_microbatches or worker.context.plan.batch.num_microbatches
    with deterministic():
        expected = _reference_step(worker, reference, count) if reference is not None else 0.0
    names = dict(reference.module.named_parameters()) if reference is not None else {}
    errors: dict[str, tuple[float, float]] = {}
    for name, gradient in _gathered(worker, names):
        if name in names:
            errors[name] = _difference(gradient, names[name].grad)
    largest = max((size for _, size in errors.values()), default=0.0)
    relative = {name: error / max(size, _FLOOR * largest, 1e-300) for name, (error, size) in errors.items()}
    worst = max(relative, key=lambda name: relative[name], default="")
    loss_error = abs(value - expected) / max(abs(expected), 1e-300)
    numbers = torch.tensor([relative.get(worst, 0.0), loss_error] if reference is not None else [0.0, 0.0]).double()
    worker.context.groups.sum(numbers)
    return Difference(float(numbers[0]), float(numbers[1]), value, worst, _limit(worker))


def _limit(worker: Worker) -> float:
    model = worker.capture.model
    short = {p.dtype for p in model.module.parameters()} | {model.autocast}
    return LIMIT_16 if short & {torch.bfloat16, torch.float16} else LIMIT


def _reference_step(worker: Worker, model: TrainingModel, num_microbatches: int) -> float:
    """Run all micro-batches one after the other, leave gradients in ``.grad`` and return the loss."""
    model.module.zero_grad(set_to_none=True)
    run = _runner(worker, model)
    total = weights = 0.0
    weighted = False
    for index in range(num_microbatches):
        loss, weight = run(split_batch(model, index, num_microbatches), index)
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


Run = Callable[[TrainingModel, int], tuple[torch.Tensor, Any]]


def _runner(worker: Worker, model: TrainingModel) -> Run:
    """Return what computes the loss and its weight of a micro-batch by its number."""

    def eager(batch: TrainingModel, index: int) -> tuple[torch.Tensor, Any]:
        with model.casting():
            output = model.module(*batch.args, **batch.kwargs)
        return batch.evaluate(output, batch.targets)

    if not seeded_part(_whole(worker), worker.draws)[1]:
        return eager
    captured = capture(model, worker.context.plan.batch.microbatch_size)
    draws = Draws(worker.draws.seed, worker.context.device, worker.draws.step - 1)
    part, _ = seeded_part(extract(captured, captured.operators), draws)

    def drawing(batch: TrainingModel, index: int) -> tuple[torch.Tensor, Any]:
        with draws.of_microbatch(index):
            result = part(captured.bind(batch), batch.targets)
        return result[LOSS], result.get(LOSS_WEIGHT)

    return drawing


def _whole(worker: Worker) -> Part:
    return extract(worker.capture, worker.capture.operators)


def _gathered(worker: Worker, reference: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield every trainable parameter's gradient on rank 0, each rank's own elsewhere; collective."""
    groups = worker.context.groups
    gradients = {name: None if p.grad is None else full(p.grad) for name, p in worker.parameters.items()}
    for name, owner in worker.context.lowest_owners.items():
        if worker.context.rank == owner:
            gradient = gradients[name]
            found = None if gradient is None else gradient.detach().cpu().contiguous()
            if owner:
                parameter = worker.parameters[name]
                sent = torch.zeros(parameter.shape, dtype=parameter.dtype) if found is None else found
                with groups.waiting((0,)):
                    groups.control.send([sent], 0, 0).wait()
            yield name, found
        elif worker.context.rank == 0:
            arrived = torch.empty_like(reference[name], device="cpu", memory_format=torch.contiguous_format)
            with groups.waiting((owner,)):
                groups.control.recv([arrived], owner, 0).wait()
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
