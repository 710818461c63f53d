"""Split backward inside the user's modules: torch's functions that take a weight are made so that its gradient waits.

Leaves out weights that a module has changed before it uses them (a view, a norm of them), and those inside functions
of torch that call others in Python (multi-head attention): their gradients come with I.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from costmodel.capture.split_calls import Deferring, Queue, is_hooked
from costmodel.capture.split_formulas import formula_for

_aten = torch.ops.aten
_FORMULAS: Mapping[Callable[..., Any], Any] = {
    nn.functional.linear: _aten.linear.default,
    torch.conv1d: _aten.conv1d.default,
    torch.conv2d: _aten.conv2d.default,
    torch.conv3d: _aten.conv3d.default,
    torch.conv_transpose1d: _aten.conv_transpose1d.default,
    torch.conv_transpose2d: _aten.conv_transpose2d.input,
    torch.conv_transpose3d: _aten.conv_transpose3d.input,
}
"""Functions whose weight halves may be had by formula, and the operator that each is."""

SPLITTABLE = frozenset[Callable[..., Any]]((
    *_FORMULAS, nn.functional.embedding, nn.functional.embedding_bag, nn.functional.bilinear,
    torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm,
    torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.mm, torch.Tensor.bmm, torch.Tensor.addmm,
    torch.Tensor.baddbmm,
))  # fmt: skip
"""Functions with a weight whose gradient can wait."""


class SplitFunctions(TorchFunctionMode):
    """Within the block weight halves are left in a queue."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue = queue

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Make a call."""
        kwargs = kwargs or {}
        if func not in SPLITTABLE or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        given = (*args, *kwargs.values())
        weights = {value: value for value in given if isinstance(value, nn.Parameter) and value.requires_grad}
        if not weights or any(map(is_hooked, weights)):
            return func(*args, **kwargs)
        if func in _FORMULAS:
            found = formula_for(_FORMULAS[func], args, kwargs)
            if found is not None:
                formula, tensors = found
                return formula.apply(self._queue.add, *tensors)
        call, tensors = Deferring.of(func, args, kwargs, weights, self._queue)
        return call(tensors)
