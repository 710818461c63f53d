"""A capture that is the same on every device, and on `meta`: one model, one graph, one fingerprint.

Torch chooses by device how attention's output is laid out and how a number is written into a tensor, and the
calls that follow hang on it. Leaves out models that choose by device themselves.
"""

from collections.abc import Callable
from types import EllipsisType
from typing import Any, TypeVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

T = TypeVar("T")


def captured_alike(trace: Callable[[], T]) -> T:
    """Return what `trace` makes, with torch's choices by device taken the same everywhere.

    Attention is laid out as the kernel does that every device has: fused ones order it otherwise, and behind them
    ``contiguous()`` is no call at all. A model that takes a view only theirs allow keeps the device's own.
    """
    with _NumbersFilledIn():
        try:
            with sdpa_kernel(SDPBackend.MATH):
                return trace()
        except (RuntimeError, ValueError) as error:
            if "view" not in str(error):
                raise
        return trace()


class _NumbersFilledIn(TorchFunctionMode):
    """``tensor[0] = 3`` fills the view; on a device torch copies a tensor of one number there instead."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__setitem__ and isinstance(args[2], int | float) and _is_view(args[1]):
            args[0][args[1]].fill_(args[2])
            return None
        if func in (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook):
            raise ValueError(
                "the forward hooks into a gradient (Tensor.register_hook), which a captured program leaves out: "
                "scale gradients by a torch.autograd.Function"
            )
        return func(*args, **(kwargs or {}))


def _is_view(index: Any) -> bool:
    """Whether an index takes a view: whole numbers, slices and the like, no tensors, lists or truth values."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(isinstance(p, int | slice | EllipsisType | None) and not isinstance(p, bool) for p in parts)
