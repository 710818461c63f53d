"""A training model with one batch of inputs, and that batch cut into micro-batches.

Knows which tensors carry the batch (`docs/guide.md`, "1. A model"). Leaves out where models come from: `models`
loads them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from costmodel.errors import InvalidInput, UsageError

Split = Callable[[Any, int, int], Any] | int | None
"""How an input is cut: along a dimension, not at all, or by a function of (value, k, n)."""

TARGETS = "targets"
"""The key of `TrainingModel.split` under which targets are found."""


@dataclass(frozen=True, slots=True)
class TrainingModel:
    """A model with one batch of inputs and the loss it is trained with.

    Attributes
    ----------
    name : str
        The spec it was loaded from.
    module : torch.nn.Module
        In train mode.
    args, kwargs
        Inputs, positional and by keyword.
    targets
        What `loss` takes besides the output; meaningless unless `has_targets`.
    loss : callable
        ``loss(output)`` or ``loss(output, targets)``: a scalar, or (sum, weight).
    split : mapping
        Exceptions from the rule that a tensor whose first dimension is the batch is cut along it.
    batch : int
        Samples that the inputs hold.
    autocast : torch.dtype, optional
        Forward and loss run under autocast to it.
    device : torch.device, optional
        Where it runs, when its parameters are elsewhere or on their way there; default: where they are.
    remark : str
        What the user should know of how it is taken; empty where there is nothing.
    lengths : mapping of str or int to int or tuple of int
        By input, as in `split`: dimensions along which micro-batches may be of unlike lengths.
    """

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    targets: Any
    has_targets: bool
    loss: Callable[..., Any]
    split: Mapping[str | int, Split]
    batch: int
    autocast: torch.dtype | None = None
    device: torch.device | None = None
    remark: str = ""
    lengths: Mapping[str | int, int | tuple[int, ...]] = field(default_factory=dict)

    def casting(self) -> torch.autocast:
        """Return the context in which the model trains: autocast to its dtype, or one that does nothing."""
        there = (parameter.device for parameter in self.module.parameters())
        kind = (self.device or next(there, torch.device("cpu"))).type
        kind = "cpu" if kind == "meta" else kind
        return torch.autocast(kind, self.autocast or torch.bfloat16, enabled=self.autocast is not None)

    def evaluate(self, output: Any, targets: Any) -> tuple[torch.Tensor, torch.Tensor | float | None]:
        """Return the loss of an output and its weight, None where the loss is a plain scalar.

        Raises
        ------
        InvalidInput
            When the loss is not a scalar tensor, or its weight not a number.
        """
        with self.casting():
            value = self.loss(output, targets) if self.has_targets else self.loss(output)
        weight = None
        if isinstance(value, tuple) and len(value) == 2:
            value, weight = value
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            found = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else describe(value)
            raise InvalidInput(f"{self.name}: the loss is {found}; it must be a scalar tensor or (sum, weight)")
        if weight is not None and not isinstance(weight, int | float) and getattr(weight, "numel", lambda: 0)() != 1:
            raise InvalidInput(
                f"{self.name}: the loss's weight is {describe(weight)}; it must be a number or a scalar tensor"
            )
        return value.reshape(()), weight


def as_trained(module: nn.Module) -> nn.Module:
    """Return a model in the mode in which a loop trains it: set to train where it is evaluated as a whole.

    Parts of a model that trains stay as they are: who froze a batch norm by `eval` wants it frozen.
    """
    return module if module.training else module.train()


def split_batch(model: TrainingModel, index: int, num_microbatches: int) -> TrainingModel:
    """Return the model with micro-batch `index` of `num_microbatches` of its inputs and targets.

    Raises
    ------
    UsageError
        When the batch does not divide.
    """
    if model.batch % num_microbatches:
        raise UsageError(
            f"a batch of {model.batch} samples cannot be cut into {num_microbatches} equal micro-batches; "
            "choose a divisor"
        )
    size = model.batch // num_microbatches

    def cut(value: Any, split: Split) -> Any:
        if callable(split):
            return split(value, index, num_microbatches)
        return _map_batched(value, split, model.batch, lambda tensor, d: tensor.narrow(d, index * size, size))

    return _with_inputs(model, cut, size)


def take(model: TrainingModel, num_samples: int) -> TrainingModel:
    """Return the model with its first `num_samples` samples, repeated in turn when it holds fewer.

    Raises
    ------
    InvalidInput
        When an input is cut by a function and `num_samples` does not divide the batch.
    """
    if model.batch % num_samples == 0:
        return split_batch(model, 0, model.batch // num_samples)
    if any(callable(split) for split in model.split.values()):
        raise InvalidInput(
            f"{model.name}: holds {model.batch} samples, {num_samples} are asked for, an input is cut by a function; "
            "give the model's function a parameter 'batch'"
        )
    order = torch.arange(num_samples) % model.batch

    def pick(value: Any, split: Split) -> Any:
        assert not callable(split)  # noqa: S101 - refused above
        return _map_batched(
            value, split, model.batch, lambda tensor, d: tensor.index_select(d, order.to(tensor.device))
        )

    return _with_inputs(model, pick, num_samples)


def move(model: TrainingModel, device: str | torch.device, dtype: torch.dtype | None = None) -> TrainingModel:
    """Return the model on a device; floating-point parameters and inputs (not targets) in `dtype`."""

    def to(value: Any, cast: bool) -> Any:
        def convert(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return leaf.to(device, dtype if cast and leaf.is_floating_point() else None)

        return pytree.tree_map(convert, value)

    return replace(
        model,
        module=model.module.to(device=device, dtype=dtype),
        args=to(model.args, True),
        kwargs=to(model.kwargs, True),
        targets=to(model.targets, False),
    )


def batched_dimensions(model: TrainingModel) -> tuple[int | None, ...]:
    """Return, for each leaf of (args, kwargs), the dimension that carries the batch, None without one.

    For a leaf cut by a function this is 0: its length changes there with the micro-batch.
    """
    found: list[int | None] = []

    def note(value: Any, split: Split) -> Any:
        leaves = pytree.tree_leaves(value)
        for leaf in leaves:
            is_tensor = isinstance(leaf, torch.Tensor) and leaf.dim() > 0
            found.append((0 if callable(split) else _dimension(leaf, split, model.batch)) if is_tensor else None)
        return value

    _with_inputs(replace(model, has_targets=False), note, model.batch)
    return tuple(found)


def ambiguous(model: TrainingModel) -> list[str]:
    """Return the arguments that hold a tensor of which two dimensions are as long as the batch, without a `split`.

    A mask [S, S] is cut like a batch where S happens to be the batch. One alone is the batch.
    """
    found, cut = [], 0
    for key, value in given(model).items():
        tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
        along = [tensor for tensor in tensors if tensor.shape[0] == model.batch]
        cut += len(along)
        if key not in model.split and any(list(tensor.shape).count(model.batch) > 1 for tensor in along):
            found.append(repr(key) if isinstance(key, str) else str(key))
    return found if cut > 1 else []


def check_cut(model: TrainingModel) -> None:
    """Refuse what holds a batch's samples and is not cut: arrays that are no tensors, and a list of one part a sample.

    Raises
    ------
    UsageError
        Names the argument. One with an entry in `split` is as its user says.
    """
    waiting: list[tuple[str, Any]]
    waiting = [
        (f"the input {key!r}" if key != TARGETS else TARGETS, one)
        for key, one in given(model).items()
        if key not in model.split
    ]
    for name, value in waiting:  # which grows meanwhile
        row = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        waiting += [(name, each) for each in row]
        whole = [each for each in row if not isinstance(each, torch.Tensor) or each.shape[:1] != (model.batch,)]
        if isinstance(value, list | tuple) and len(value) == model.batch > 1 and whole:
            raise UsageError(
                f"{name} has {describe(value)}, as many as the batch has samples, and only tensors are cut into "
                "micro-batches: give one tensor with a row a sample (torch.stack, padded), or say in split= how it is "
                "cut ({name: a function of (value, k, n), or None for what goes whole to each micro-batch})"
            )
        if hasattr(value, "__array__") and not isinstance(value, torch.Tensor) and bool(getattr(value, "ndim", 0)):
            raise UsageError(
                f"{name} has {describe(value)}, and only tensors are cut into micro-batches: give torch.as_tensor of it"
            )


def _with_inputs(model: TrainingModel, cut: Callable[[Any, Split], Any], size: int) -> TrainingModel:
    """Apply `cut` to each input and to the targets; inputs without an entry in split are marked `_BY_RULE`.

    What is not cut stays whole where it is as long as the new batch by chance.
    """
    unsaid = {key: value for key, value in given(model).items() if key not in model.split}
    whole = {key: None for key, value in unsaid.items() if _is_cut(value, size) and not _is_cut(value, model.batch)}
    return replace(
        model,
        args=tuple(cut(value, model.split.get(i, _BY_RULE)) for i, value in enumerate(model.args)),
        kwargs={name: cut(value, model.split.get(name, _BY_RULE)) for name, value in model.kwargs.items()},
        targets=cut(model.targets, model.split.get(TARGETS, _BY_RULE)) if model.has_targets else model.targets,
        split={**whole, **model.split},
        batch=size,
    )


def given(model: TrainingModel) -> dict[str | int, Any]:
    """Return all inputs and the targets by the keys of `split`."""
    found: dict[str | int, Any] = dict(enumerate(model.args))
    found.update(model.kwargs)
    return found | ({TARGETS: model.targets} if model.has_targets else {})


def _is_cut(value: Any, batch: int) -> bool:
    tensors = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return any(_dimension(tensor, _BY_RULE, batch) is not None for tensor in tensors)


_BY_RULE = -(10**6)
"""No entry in split: cut along the first dimension where that is the batch."""


def _dimension(tensor: torch.Tensor, split: int | None, batch: int) -> int | None:
    if split is None or tensor.dim() == 0:
        return None
    if split == _BY_RULE:
        return 0 if tensor.shape[0] == batch else None
    return split % tensor.dim()


def _map_batched(value: Any, split: int | None, batch: int, change: Callable[[torch.Tensor, int], torch.Tensor]) -> Any:
    def leaf(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        dimension = _dimension(item, split, batch)
        return item if dimension is None else change(item, dimension)

    return pytree.tree_map(leaf, value)


def describe(value: Any) -> str:
    """Return what a value is, for error messages."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"an object of type {type(value).__name__}"
