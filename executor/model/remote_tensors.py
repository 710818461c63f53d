"""What is not here while a loss runs refuses to be read: tensors of other ranks, and what their forwards keep.

Leaves out what a loss does beside (`users_loss`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from costmodel.capture.parts import Part
from costmodel.errors import DoesNotMatch

_HARMLESS = {
    getattr(torch.Tensor, name).__get__ for name in ("device", "dtype", "is_cuda", "is_leaf", "layout", "requires_grad")
}
"""What may be asked of a tensor that is not here."""


class _Away:
    """What a tensor that is not here is while a loss runs."""

    words: ClassVar[Mapping[int, str]] = {}

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        found = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, _Away))
        raise DoesNotMatch(
            f"the loss reads {cls.words[id(next(found))]}, which is not here as a plain loop has it: a loss is "
            "computed from the model's output and the targets; give a penalty on parameters to the optimizer "
            "(weight_decay=), or return the term from the model's forward and add it to the loss there"
        )


class _AwayParameter(_Away, nn.Parameter):
    pass


class _AwayTensor(_Away, torch.Tensor):
    pass


_AWAY: Mapping[type, type] = {nn.Parameter: _AwayParameter, torch.Tensor: _AwayTensor}

Kept = tuple[dict[str, Any], str, str]
"""The table of a module's attributes, the name of one, and what people call it."""


@dataclass(slots=True)
class AwayTensors:
    """What a loss may not read of a model.

    Attributes
    ----------
    words : dict of int to str
        Ids of tensors, and what people call them; looked up among `tensors`.
    tensors : sequence of torch.Tensor
        All of the model's.
    kept : sequence
        Attributes that forwards of modules write which the loss's stage does not call.
    """

    words: dict[int, str] = field(default_factory=dict)
    tensors: Sequence[torch.Tensor] = ()
    kept: Sequence[Kept] = ()

    def settle(self, module: nn.Module, held: Collection[int]) -> None:
        """Learn which tensors of a model are here."""
        named = [*module.named_parameters(), *module.named_buffers()]
        self.tensors = [tensor for _, tensor in named]
        self.words = {id(tensor): f"{name!r} of the model" for name, tensor in named if id(tensor) not in held}

    def hide(self, module: nn.Module, kept: Iterable[tuple[str, str]], part: Part) -> None:
        """Have attributes that forwards keep on modules refuse to be read, but for those that a part calls."""
        self.kept = [
            (vars(module.get_submodule(path)), name, f"{name} of the module {path or type(module).__name__!r}")
            for path, name in kept
            if not part.calls_module(path)
        ]

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Have what is not here refuse to be read within the block."""
        changed = [(tensor, type(tensor)) for tensor in self.tensors if id(tensor) in self.words]
        changed = [(tensor, kind) for tensor, kind in changed if kind in _AWAY]
        put = [(table, name, table.get(name), name in table, words) for table, name, words in self.kept]
        stands = [torch.empty(0).as_subclass(_AwayTensor) for _ in put]
        _Away.words = {**self.words, **{id(stand): row[-1] for stand, row in zip(stands, put, strict=True)}}
        for tensor, kind in changed:
            tensor.__class__ = _AWAY[kind]
        for stand, (table, name, *_) in zip(stands, put, strict=True):
            table[name] = stand
        try:
            yield
        finally:
            for tensor, kind in changed:
                tensor.__class__ = kind
            for table, name, value, was_there, _ in put:
                table[name] = value
                if not was_there:
                    del table[name]
