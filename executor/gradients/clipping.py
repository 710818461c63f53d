"""The norm of all ranks' gradients, and gradients scaled, on the device.

Torch's own norm of what is a rank's part alone is refused. Leaves out other norms than the second, and norms that a
program computes by itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad

from costmodel.errors import UsageError
from executor.context import RankContext
from executor.stages.user_parallelize import num_parts, own_part


def clip(context: RankContext, parameters: Mapping[str, nn.Parameter], max_norm: float | None) -> torch.Tensor:
    """Scale gradients so that their norm over all ranks is at most `max_norm`, if one is given; collective.

    Parameters
    ----------
    context : RankContext
    parameters : mapping
        This rank's, by name.
    max_norm : float or None

    Returns
    -------
    torch.Tensor
        The norm before, on a device that works behind its host on the device.
    """
    device, shares = context.device, _shares_of_norm(context, parameters)
    found = {n: own_part(p.grad) for n, p in parameters.items() if p.grad is not None}
    mine = [name for name in found if shares[name] and found[name].numel()]
    norms = torch._foreach_norm([found[name] for name in mine]) if mine else []
    square = torch.zeros((), dtype=torch.float64, device=device)
    for name, norm in zip(mine, norms, strict=True):
        square += shares[name] * norm.double() ** 2
    total = context.groups.sum_on_devices(square).sqrt()
    if max_norm is None:
        return total
    # As torch.nn.utils.clip_grad_norm_: a norm that is no number makes every gradient none, for all to see.
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0).to(device)
    by_number(found.values(), scale, torch._foreach_mul_)
    return total


def by_number(
    gradients: Iterable[torch.Tensor],
    number: torch.Tensor,
    operation: Callable[[list[torch.Tensor], torch.Tensor], Any],
) -> None:
    """Multiply or divide gradients by a number on their device, in place, rounded once as by a number of the host's.

    A number in sixteen bits would be off by up to 0.4 %, so these gradients are computed in float32.
    """
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_type.setdefault(gradient.dtype, []).append(gradient)
    for dtype, same in by_type.items():
        if dtype.itemsize >= 4:
            operation(same, number.to(dtype))
            continue
        for gradient in same:
            exact = [gradient.float()]
            operation(exact, number.float())
            gradient.copy_(exact[0])


def _shares_of_norm(context: RankContext, parameters: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """Return what part of a rank's values of each parameter counts, so that over all ranks each value counts once.

    Those of whole ones count on the lowest rank alone; of divided ones, which one stage has, each rank's in part, as
    often as the same part is there.
    """
    found = {name: float(context.lowest_owners[name] == context.rank) for name in parameters}
    for stage, names in zip(context.plan.stages, context.owned, strict=True):
        for name in names:
            if name in parameters and num_parts(parameters[name]) > 1:
                found[name] = num_parts(parameters[name]) / len(stage.ranks)
    return found


_PARTS: list[Mapping[str, nn.Parameter]] = []
"""This process's parameters of each pipeline of which it holds a part."""

_torchs_norm: Callable[..., torch.Tensor] = clip_grad._get_total_norm


def _total_norm(tensors: Any, *arguments: Any, **options: Any) -> torch.Tensor:
    """Compute torch's norm, unless it is of all gradients of a rank, for which a plain loop has the whole model's."""
    given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    ids = {id(gradient) for gradient in given}
    if any(ids == {id(p.grad) for p in parameters.values() if p.grad is not None} for parameters in _PARTS if ids):
        raise UsageError(
            "torch's norm of all gradients is that of this rank's stages alone, and ranks would clip differently: take "
            "pipe.clip_grad_norm_(max_norm) between pipe.step and your optimizer's step, or max_norm= of Pipeline "
            "where the plan has OPT; pipe.last.gradient_norm has the norm with gradient_norm=True"
        )
    return _torchs_norm(given, *arguments, **options)


@contextmanager
def refusing_norms_of_parts(parameters: Mapping[str, nn.Parameter], owned: Sequence[Sequence[str]]) -> Iterator[None]:
    """Within the block, refuse torch's norm of all of a rank's gradients where other ranks have others.

    Parameters
    ----------
    parameters : mapping
        This rank's, by name.
    owned : sequence of sequences of str
        Names of the trainable parameters that each stage reads.
    """
    has_all = len(parameters) == len({name for names in owned for name in names})
    if has_all or (len(parameters) == 1 and any(len(names) > 1 for names in owned)):  # one by one they may be clipped
        yield
        return
    _PARTS.append(parameters)
    clip_grad._get_total_norm = torch.nn.utils.get_total_norm = _total_norm
    try:
        yield
    finally:
        _PARTS[:] = [other for other in _PARTS if other is not parameters]
        if not _PARTS:
            clip_grad._get_total_norm = torch.nn.utils.get_total_norm = _torchs_norm


def allow_norms_of_parts(parameters: Mapping[str, nn.Parameter]) -> None:
    """Let torch's norm of these parameters' gradients be taken: the program sums its square over ranks itself."""
    ids = set(map(id, parameters.values()))
    _PARTS[:] = [other for other in _PARTS if not ids.issuperset(map(id, other.values()))]
