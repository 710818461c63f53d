"""Whether a loss separates over micro-batches: the mean of theirs is the loss of the whole batch.

A pipeline only ever sees a micro-batch. A contrastive loss compares each sample with every other of the
batch, so that cutting the batch trains something else: such losses are refused, by name or by numbers.
Leaves out models that draw random numbers, whose loss is another one each time.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from costmodel.capture.batches import TrainingModel, split_batch, take
from costmodel.capture.models import running
from costmodel.errors import InvalidInput

_NAMES = re.compile(r"contrastive|info_?nce|nt_?xent|sim_?clr|clip_?loss|sig_?lip_?loss|barlow", re.IGNORECASE)
_OF_EXPERTS = re.compile(r"aux_?(iliary_?)?loss|load_?balanc|router_(z_)?loss", re.IGNORECASE)
"""Names under which mixtures of experts hand on the loss that evens out what each expert gets."""
_WAY_OUT = "a loss of each sample alone, or (sum, weight) of such, is needed"
TOLERANCE = 1e-3
"""Share of the loss; more where the model computes in fewer digits."""


def check_separates(model: TrainingModel) -> str:
    """Refuse a loss that compares samples of a batch; return a remark on one that merely weighs them.

    A loss that is no finite number is remarked on too.

    Raises
    ------
    InvalidInput
        Naming the loss, with both values where numbers showed it; also when no gradient flows from it.
    """
    name = _name(model)
    if _NAMES.search(name) or model.kwargs.get("return_loss"):
        shown = "return_loss=True" if model.kwargs.get("return_loss") else repr(name)
        raise InvalidInput(
            f"{model.name}: the loss {shown} compares the samples of a batch with each other; cut into micro-batches "
            f"it would be another loss; {_WAY_OUT}"
        )
    found = _losses(model)
    if found is None:
        return ""
    whole, (first, second), weighted = found
    strange = next((value for value in (whole, first, second) if not math.isfinite(value)), None)
    if strange is not None:
        return f"the loss is {strange} on the model's own inputs: nothing is learned so; look at inputs, labels, dtype"
    slack = _tolerance(model) * max(abs(whole), abs(first), abs(second), 1e-6)
    if abs(whole - (first + second) / 2) <= slack or weighted:
        return ""
    if abs(whole - (first + second)) <= slack:
        return "the loss is a sum over samples; micro-batches are averaged: return (sum, weight) to train the same loss"
    of_experts = _auxiliary(model)
    if of_experts:
        return (
            f"the loss holds an auxiliary loss of the experts ({of_experts}), which a pipeline takes of each "
            "micro-batch by itself, as trainers of mixtures do, and not of the whole batch"
        )
    if min(first, second) - slack <= whole <= max(first, second) + slack:
        return "the loss weighs micro-batches unequally (masked tokens?): return (sum, weight) to train the same loss"
    raise InvalidInput(
        f"{model.name}: the loss {name!r} of a batch is {whole:.6g}, of its halves {first:.6g} and {second:.6g}: it "
        f"does not separate over micro-batches (contrastive?); {_WAY_OUT}"
    )


def _tolerance(model: TrainingModel) -> float:
    """Return by how much equal losses may differ: a sum in bfloat16 rounds more than a thousandth away."""
    kinds = {p.dtype for p in model.module.parameters() if p.is_floating_point()} | {model.autocast or torch.float32}
    return max(TOLERANCE, 2 * max(torch.finfo(kind).eps for kind in kinds))


def _name(model: TrainingModel) -> str:
    return getattr(model.loss, "__name__", type(model.loss).__name__)


def _auxiliary(model: TrainingModel) -> str:
    """Return the name of an experts' auxiliary loss that the output has, or the loss's code speaks of; else nothing."""
    with _per_sample(model.module), torch.no_grad():
        output = model.module(*model.args, **model.kwargs)
    code = getattr(model.loss, "__code__", None)
    spoken = (*code.co_names, *code.co_varnames) if code else ()
    held = [name for name, value in output.items() if value is not None] if isinstance(output, Mapping) else []
    return next((name for name in (*held, *spoken) if _OF_EXPERTS.search(str(name))), "")


def _losses(model: TrainingModel) -> tuple[float, tuple[float, float], bool] | None:
    """Return the loss of a batch, of its halves and whether it has weights; None where that says nothing."""
    if any(parameter.is_meta for parameter in model.module.parameters()):
        return None
    batch = take(model, model.batch + model.batch % 2)
    with _per_sample(model.module), torch.no_grad():
        before = _random_state()
        pieces = [batch, split_batch(batch, 0, 2), split_batch(batch, 1, 2)]
        with running(model.name):
            found = [_loss(piece, piece is pieces[-1]) for piece in pieces]
        if not found[-1][0].requires_grad:
            raise InvalidInput(
                f"{model.name}: no gradient flows from the loss to any parameter: all are frozen, or the loss is "
                "detached; nothing would be trained"
            )
        values = [float(loss.detach()) for loss, _ in found]
        drawn = any(not torch.equal(a, b) for a, b in zip(before, _random_state(), strict=True))
        if drawn and all(map(math.isfinite, values)):
            return None
    return values[0], (values[1], values[2]), found[0][1] is not None


def _loss(piece: TrainingModel, with_gradient: bool) -> tuple[torch.Tensor, torch.Tensor | float | None]:
    with torch.set_grad_enabled(with_gradient):
        return piece.evaluate(piece.module(*piece.args, **piece.kwargs), piece.targets)


def _random_state() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if torch.cuda.is_available() else states


@contextmanager
def _per_sample(module: nn.Module) -> Iterator[None]:
    """Within the block batch norms use their running statistics and dropout does nothing; buffers are put back."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    changed = [m for m in module.modules() if isinstance(m, kinds) and m.training]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    for item in changed:
        item.eval()
    try:
        yield
    finally:
        for item in changed:
            item.train()
        for buffer, value in buffers:
            buffer.data.copy_(value)
