"""The norm of all ranks' gradients, and gradients scaled by it. Leaves out other norms than the second."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from executor.groups import Company
from executor.parallel import num_parts, own_part
from planner.plan import Plan


def clip(
    parameters: Mapping[str, nn.Parameter], shares: Mapping[str, float], max_norm: float, company: Company
) -> float:
    """Scale gradients so that their norm over all ranks is at most `max_norm`; collective.

    Parameters
    ----------
    parameters : mapping
        This rank's, by name.
    shares : mapping of str to float
        What part of this rank's values of each counts, so that over all ranks each value counts once.

    Returns
    -------
    float
        The norm before.
    """
    found = {n: own_part(p.grad) for n, p in parameters.items() if p.grad is not None}
    mine = [name for name in found if shares[name] and found[name].numel()]
    norms = torch._foreach_norm([found[name] for name in mine]) if mine else []
    square = sum(shares[name] * float(norm) ** 2 for name, norm in zip(mine, norms, strict=True))
    norm = float(company.sum(torch.tensor([square], dtype=torch.float64)).sqrt())
    # As torch.nn.utils.clip_grad_norm_: a norm that is no number makes every gradient none, for all to see.
    scale = max_norm / (norm + 1e-6)
    if not scale >= 1.0:
        for gradient in found.values():
            gradient.mul_(scale)
    return norm


def shares_of_norm(
    plan: Plan,
    owned: Sequence[Sequence[str]],
    parameters: Mapping[str, nn.Parameter],
    lowest: Mapping[str, int],
    rank: int,
) -> dict[str, float]:
    """Return what part of a rank's values of each parameter counts: those of whole ones on the lowest rank alone.

    Of divided ones, which one stage has, each rank's in part, as often as the same part is there.
    """
    found = {name: float(lowest[name] == rank) for name in parameters}
    for stage, names in enumerate(owned):
        for name in names:
            if name in parameters and num_parts(parameters[name]) > 1:
                found[name] = num_parts(parameters[name]) / len(plan.stages[stage].ranks)
    return found
