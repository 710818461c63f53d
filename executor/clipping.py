"""The norm of all ranks' gradients, and gradients scaled by it. Leaves out other norms than the second."""

from collections.abc import Mapping

import torch
from torch import nn

from executor.groups import Company
from executor.parallel import own_part


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
