"""The norm of all ranks' gradients, and gradients scaled by it. Leaves out other norms than the second."""

from collections.abc import Mapping

import torch
from torch import nn

from executor.groups import Company


def clip(parameters: Mapping[str, nn.Parameter], owners: Mapping[str, int], max_norm: float, company: Company) -> float:
    """Scale gradients so that their norm over all ranks is at most `max_norm`; collective.

    Parameters
    ----------
    parameters : mapping
        This rank's, by name.
    owners : mapping of str to int
        The rank that counts each parameter.

    Returns
    -------
    float
        The norm before.
    """
    mine = [p.grad for n, p in parameters.items() if owners[n] == company.rank and p.grad is not None]
    norms = torch._foreach_norm(mine) if mine else []
    square = sum(float(norm) ** 2 for norm in norms)
    norm = float(company.sum(torch.tensor([square], dtype=torch.float64)).sqrt())
    # As torch.nn.utils.clip_grad_norm_: a norm that is no number makes every gradient none, for all to see.
    scale = max_norm / (norm + 1e-6)
    if not scale >= 1.0:
        for parameter in parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
    return norm
