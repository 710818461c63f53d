"""A step's batch, cut into the micro-batch groups that this rank's stages read.

Leaves out how the user loads data.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from costmodel.capture.batches import batched_dimensions, split_batch
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
        """Take the inputs (tuple or dict) and targets of a whole step.

        Raises
        ------
        UsageError
            When no input holds the plan's number of samples.
        """
        args, kwargs = as_arguments(inputs)
        batch = replace(self._capture.model, args=args, kwargs=kwargs, targets=targets, batch=self._batch_size)
        there = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if there and all(dimension is None for dimension in batched_dimensions(batch)):
            raise UsageError(f"no input has {self._batch_size} samples, which the plan's step takes")
        self._batch = batch
        self._groups.clear()

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


def as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of inputs given as a tuple, a dict or one tensor."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}
