"""Several tensors as one message: posting a message costs more than copying a few kilobytes.

All tensors of a message stand in one buffer of bytes, each at a multiple of `ALIGNMENT`, so that both ends know the
layout from the shapes alone. A message of one tensor is that tensor; one without any (a plan may send back over an
edge that carries no gradient) is a single byte.
"""

from collections.abc import Sequence
from math import prod

import torch

from executor.wiring import Template

ALIGNMENT = 64
"""Bytes; what torch's own allocations keep, so that kernels see nothing unusual."""


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the message of some tensors, contiguous."""
    if len(tensors) == 1:
        return tensors[0].detach().contiguous()
    if not tensors:
        return torch.zeros(1, dtype=torch.uint8)
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    message = torch.empty(sum(map(_aligned, sizes)), dtype=torch.uint8, device=tensors[0].device)
    start = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        message[start : start + size].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        start += _aligned(size)
    return message


def empty_message(templates: Sequence[Template], device: torch.device) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return room for a message, and the tensors in it."""
    if len(templates) == 1:
        shape, dtype = templates[0]
        message = torch.empty(shape, dtype=dtype, device=device)
        return message, [message]
    sizes = [prod(shape) * dtype.itemsize for shape, dtype in templates]
    message = torch.empty(sum(map(_aligned, sizes)) or 1, dtype=torch.uint8, device=device)
    tensors, start = [], 0
    for (shape, dtype), size in zip(templates, sizes, strict=True):
        tensors.append(message[start : start + size].view(dtype).view(shape))
        start += _aligned(size)
    return message, tensors


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
