"""A step's batch, cut into the micro-batch groups that this rank's stages read.

A batch that is not as the model was captured, or not as long as the plan's step, is refused in words before a rank
waits for another. Leaves out how the user loads data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TARGETS, Split, TrainingModel, batched_dimensions, split_batch
from costmodel.capture.capture import Capture
from costmodel.errors import UsageError


class Feed:
    """Micro-batch groups of the batch that was loaded last.

    Parameters
    ----------
    capture : Capture
    batch_size, num_microbatches : int
        Of the whole step.
    device : torch.device
        Where stages want their inputs.
    """

    def __init__(self, capture: Capture, batch_size: int, num_microbatches: int, device: torch.device) -> None:
        self._capture, self._device = capture, device
        self._batch_size, self._num_microbatches = batch_size, num_microbatches
        self._batch = capture.model
        self._groups: dict[tuple[int, int], tuple[dict[str, Any], Any]] = {}

    def load(self, inputs: Any, targets: Any = None) -> None:
        """Take the inputs (tuple or dict) and targets of a whole step; what no rank reads may be None.

        Raises
        ------
        UsageError
            When there are more or fewer samples than the plan's step takes, or a tensor has another shape than the
            model was captured with.
        """
        args, kwargs = as_arguments(inputs)
        model = self._capture.model
        if set(kwargs) == set(model.kwargs):
            kwargs = {name: kwargs[name] for name in model.kwargs}
        batch = replace(model, args=args, kwargs=kwargs, targets=targets, batch=self._batch_size)
        self._check(batch)
        if self._device.type == "cuda":  # from memory that stays in place a copy waits for nothing
            batch = replace(batch, args=_pinned(args), kwargs=_pinned(kwargs), targets=_pinned(targets))
        self._batch = batch
        self._groups.clear()

    def _check(self, batch: TrainingModel) -> None:
        """Refuse a batch that is not as long as a step or not as it was captured."""
        given, captured = _leaves(batch), _leaves(self._capture.model)
        if [leaf.name for leaf in given] != [leaf.name for leaf in captured]:
            there, wanted = (", ".join(leaf.name for leaf in row) or "nothing" for row in (given, captured))
            raise UsageError(f"the batch has {there}; the model was captured with {wanted}")
        for leaf, like in zip(given, captured, strict=True):
            if isinstance(leaf.value, torch.Tensor) and isinstance(like.value, torch.Tensor):
                self._check_tensor(leaf.name, leaf.value, like.value, like.dimension)
            elif leaf.name == TARGETS and leaf.value is None and like.value is not None:
                raise UsageError("no targets are given, and the loss takes some: pass them as the second argument")

    def _check_tensor(self, name: str, tensor: torch.Tensor, like: torch.Tensor, dimension: int | None) -> None:
        if tensor.dtype != like.dtype and (tensor.is_floating_point() or like.is_floating_point()):
            raise UsageError(f"{name} is of {tensor.dtype}; the model was captured with {like.dtype}")
        if dimension == _BY_FUNCTION:
            return
        wanted = [self._batch_size if i == dimension else length for i, length in enumerate(like.shape)]
        if list(tensor.shape) == wanted:
            return
        if dimension is not None and tensor.dim() == like.dim() and tensor.shape[dimension] != self._batch_size:
            raise UsageError(
                f"{name} holds {tensor.shape[dimension]} samples, and the plan's step takes {self._batch_size}: leave "
                "a short last batch out (drop_last), or fill it up with samples that weigh nothing in a (sum, weight) "
                "loss"
            )
        raise UsageError(
            f"{name} has the shape {list(tensor.shape)}, and the model was captured for {wanted}: pad it to that, or "
            "make a pipeline with an example of this shape"
        )

    def read(self, names: tuple[str, ...], with_targets: bool, multiple: int, first: int) -> tuple[dict[str, Any], Any]:
        """Return the raw inputs of these names, and targets if wanted, of one group on the device.

        The group that starts at micro-batch `first` has `multiple` of them.
        """
        if not names and not with_targets:
            return {}, None
        values, targets = self._group(first, multiple)
        moved = {name: self._moved(values[name]) for name in names}
        return moved, self._moved(targets) if with_targets else None

    def _group(self, first: int, multiple: int) -> tuple[dict[str, Any], Any]:
        """Return the raw inputs and targets of the micro-batches [first, first + multiple), cut once a batch."""
        if (first, multiple) not in self._groups:
            group = split_batch(self._batch, first // multiple, self._num_microbatches // multiple)
            self._groups[first, multiple] = self._capture.bind(group), group.targets
        return self._groups[first, multiple]

    def keys(self) -> list[str | int]:
        """Return, for each raw input in order, the name or position of the argument that it is a leaf of."""
        model = self._capture.model
        found: list[str | int] = []
        for position, value in enumerate(model.args):
            found += [position] * len(pytree.tree_leaves(value))
        for name, value in model.kwargs.items():
            found += [name] * len(pytree.tree_leaves(value))
        return found

    def _moved(self, value: Any) -> Any:
        if self._device.type == "cpu":
            return value
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self._device, non_blocking=True), value)


def _pinned(values: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.pin_memory() if t.device.type == "cpu" else t, values)


_BY_FUNCTION = -1


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf of a batch with the dimension that carries the samples: None for none, -1 where a function cuts it."""

    name: str
    value: Any
    dimension: int | None


def _leaves(model: TrainingModel) -> list[_Leaf]:
    keys: list[tuple[str | int, Any]] = [*enumerate(model.args), *model.kwargs.items()]
    keys += [(TARGETS, model.targets)] if model.has_targets else []
    found = []
    for key, value in keys:
        split: dict[str | int, Split] = {0: model.split[key]} if key in model.split else {}
        alone = replace(model, args=(value,), kwargs={}, split=split, has_targets=False)
        name = TARGETS if key == TARGETS else f"input {key!r}"
        by_function = callable(split.get(0))
        for leaf, dimension in zip(pytree.tree_leaves(value), batched_dimensions(alone), strict=True):
            found.append(_Leaf(name, leaf, _BY_FUNCTION if by_function else dimension))
    return found


def as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of inputs given as a tuple, a dict or one tensor."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}
