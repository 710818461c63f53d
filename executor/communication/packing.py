"""Several tensors as one message: posting a message costs more than copying a few kilobytes.

All tensors of a message stand in one buffer, each at a multiple of `ALIGNMENT` bytes, so that both ends know the
layout from the shapes alone; the buffer has the type of its tensors where they share one, else it is bytes. A
message of one tensor is that tensor; one without any (a plan may send back over an edge that carries no
gradient) is a single byte. A message costs few calls: each takes its time while a rank could compute.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from executor.communication.wiring import Template

ALIGNMENT = 64
"""Bytes; what torch's own allocations keep, so that kernels see nothing unusual."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Type and length of a buffer; for each tensor its strides, its offset and its padding, in elements."""

    dtype: torch.dtype
    length: int
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    padding: tuple[int, ...]


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the message of some tensors, contiguous; what a collective still makes is waited for."""
    tensors = [tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor for tensor in tensors]
    if len(tensors) == 1:
        return tensors[0].detach().contiguous()
    if not tensors:
        return torch.zeros(1, dtype=torch.uint8)
    layout = _layout(tuple([(tensor.shape, tensor.dtype) for tensor in tensors]))
    with torch.no_grad():
        pieces = []
        for tensor, padding in zip(tensors, layout.padding, strict=True):
            flat = tensor.reshape(-1).contiguous()  # of a column of a matrix it is a view with gaps
            pieces.append(flat if tensor.dtype is layout.dtype else flat.view(layout.dtype))
            if padding:
                pieces.append(flat.new_zeros(padding, dtype=layout.dtype))
        return torch.cat(pieces)


def empty_message(templates: tuple[Template, ...], device: torch.device) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return room for a message, and the tensors in it."""
    if len(templates) == 1:
        shape, dtype = templates[0]
        message = torch.empty(shape, dtype=dtype, device=device)
        return message, [message]
    layout = _layout(templates)
    message = torch.empty(layout.length, dtype=layout.dtype, device=device)
    tensors = []
    for (shape, dtype), strides, offset in zip(templates, layout.strides, layout.offsets, strict=True):
        if dtype is layout.dtype:
            tensors.append(message.as_strided(shape, strides, offset))
        else:
            tensors.append(message[offset : offset + prod(shape) * dtype.itemsize].view(dtype).view(shape))
    return message, tensors


@lru_cache(4096)
def _layout(templates: tuple[Template, ...]) -> _Layout:
    dtypes = {dtype for _, dtype in templates}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
    offsets, padding, start = [], [], 0
    for shape, own in templates:
        length = prod(shape) * own.itemsize // dtype.itemsize
        offsets.append(start)
        padding.append(-length % (ALIGNMENT // dtype.itemsize))
        start += length + padding[-1]
    strides = tuple(tuple(prod(shape[i + 1 :]) for i in range(len(shape))) for shape, _ in templates)
    return _Layout(dtype, max(1, start), strides, tuple(offsets), tuple(padding))
