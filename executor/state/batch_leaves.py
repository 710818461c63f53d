"""The leaves of a batch: what each is called, along which dimension its samples stand, and how it may be.

Leaves out which micro-batches they are cut into (`microbatch_loader`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TARGETS, Split, TrainingModel, batched_dimensions, describe
from costmodel.capture.lengths import free_dimensions
from costmodel.errors import UsageError

BY_FUNCTION = -1


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of a batch.

    Attributes
    ----------
    path : tuple
        Where it stands in (args, kwargs), or in the targets.
    key : str or int
        Name or position of its argument, or ``targets``.
    value
    dimension : int or None
        That carries the samples: None for none, `BY_FUNCTION` where a function cuts it.
    free : frozenset of int
        Dimensions along which it may be of another length than the model was captured with.
    microbatch : int or None
        Which micro-batch it is of; None for the whole batch.
    """

    path: tuple[Any, ...]
    key: str | int
    value: Any
    dimension: int | None
    free: frozenset[int] = frozenset()
    microbatch: int | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return TARGETS + pytree.keystr(self.path) if self.key == TARGETS else named(self.path)


def input_leaves(model: TrainingModel) -> list[Leaf]:
    """Return the leaves of a model's inputs."""
    leaves, _ = pytree.tree_flatten_with_path((model.args, dict(model.kwargs)))
    dimensions = batched_dimensions(model)
    found = []
    for (path, value), dimension in zip(leaves, dimensions, strict=True):
        key = _key(path)
        by_function = callable(model.split.get(key))
        free = free_dimensions(model, key, value)
        found.append(Leaf(path, key, value, BY_FUNCTION if by_function else dimension, free))
    return found


def target_leaves(model: TrainingModel) -> list[Leaf]:
    """Return the leaves of a model's targets."""
    if not model.has_targets:
        return []
    split: dict[str | int, Split] = {0: model.split[TARGETS]} if TARGETS in model.split else {}
    lengths: dict[str | int, int | tuple[int, ...]] = {0: model.lengths[TARGETS]} if TARGETS in model.lengths else {}
    alone = replace(model, args=(model.targets,), kwargs={}, split=split, lengths=lengths)
    return [replace(leaf, path=leaf.path[2:], key=TARGETS) for leaf in input_leaves(alone)]


def check_leaves(given: Sequence[Leaf], targets: Sequence[Leaf], model: TrainingModel, batch_size: int) -> None:
    """Refuse leaves that are not as the model was captured.

    Raises
    ------
    UsageError
        When there are more or fewer samples, a tensor has another shape, or what is no tensor has another value.
    """
    captured = input_leaves(model)
    for leaf, like in zip(given, captured, strict=True):
        if not isinstance(like.value, torch.Tensor):
            _check_constant(leaf, like)
    own, wanted = ({one.path: one for one in row} for row in (targets, target_leaves(model)))
    none = [one for one in targets if not one.path and one.value is None]
    if none and any(one.value is not None for one in wanted.values()):
        raise UsageError("no targets are given, and the loss takes some: pass them as the second argument")
    if own.keys() != wanted.keys():
        there, names = (", ".join(one.name for one in row.values()) for row in (own, wanted))
        raise UsageError(f"the batch has {there}; the model was captured with {names}")
    for leaf, like in [*zip(given, captured, strict=True), *((own[path], wanted[path]) for path in own)]:
        if not isinstance(like.value, torch.Tensor) or (
            leaf.value is None and leaf.microbatch is None and not like.free
        ):
            continue
        if not isinstance(leaf.value, torch.Tensor):
            shown = repr(leaf.value) if isinstance(leaf.value, bool | int | float | str) else describe(leaf.value)
            raise UsageError(f"{leaf.name} is {shown}; the model was captured with a tensor there")
        _check_tensor(leaf, like, batch_size)


def _check_tensor(leaf: Leaf, like: Leaf, batch_size: int) -> None:
    name, tensor, captured, dimension = leaf.name, leaf.value, like.value, like.dimension
    if tensor.dtype != captured.dtype and (tensor.is_floating_point() or captured.is_floating_point()):
        raise UsageError(f"{name} is of {tensor.dtype}; the model was captured with {captured.dtype}")
    if dimension == BY_FUNCTION:
        return
    wanted = [batch_size if i == dimension else length for i, length in enumerate(captured.shape)]
    if tensor.dim() == captured.dim():
        wanted = [tensor.shape[i] if i in like.free else length for i, length in enumerate(wanted)]
    if list(tensor.shape) == wanted:
        return
    if dimension is not None and tensor.dim() == captured.dim() and tensor.shape[dimension] != batch_size:
        if leaf.microbatch is not None:
            raise UsageError(
                f"{name} of micro-batch {leaf.microbatch} holds {tensor.shape[dimension]} samples, and others of it "
                f"{batch_size}"
            )
        raise UsageError(
            f"{name} holds {tensor.shape[dimension]} samples, and the plan's step takes {batch_size}: give a short "
            "last batch with short=True, leave it out (drop_last), or fill it up with samples that weigh nothing "
            "in a (sum, weight) loss"
        )
    raise UsageError(
        f"{name} has the shape {list(tensor.shape)}, and the model was captured for {wanted}: pad it to that, make a "
        "pipeline with an example of this shape, or let lengths= name the dimensions that change"
    )


def _check_constant(leaf: Leaf, like: Leaf) -> None:
    """Refuse another number, flag or word than the one that the captured program holds.

    Raises
    ------
    UsageError
    """
    given, held = leaf.value, like.value
    try:
        same = given is held or bool(given == held) or (given != given and held != held)
    except (ValueError, RuntimeError, TypeError):  # what cannot be compared
        same = False
    if not same:
        shown = "a tensor" if isinstance(given, torch.Tensor) else repr(given)
        raise UsageError(
            f"{leaf.name} is {shown}; the model was captured with {held!r}, which its program holds from then on: give "
            "it as a tensor where it changes, or make a pipeline for each value"
        )


def num_samples(leaves: Sequence[Leaf]) -> int | None:
    """Return how many samples leaves hold, by the first that is cut along a dimension; None where none is."""
    for leaf in leaves:
        tensor = leaf.value
        if isinstance(tensor, torch.Tensor) and leaf.dimension not in (None, BY_FUNCTION) and tensor.dim():
            return int(tensor.shape[leaf.dimension]) if leaf.dimension < tensor.dim() else None
    return None


def named(path: tuple[Any, ...]) -> str:
    """Return an input's name by its path in (args, kwargs)."""
    return f"input {_key(path)!r}{pytree.keystr(path[2:])}" if len(path) > 1 else "arguments"


def _key(path: tuple[Any, ...]) -> str | int:
    found: str | int = path[1].idx if isinstance(path[1], pytree.SequenceKey) else path[1].key
    return found


def as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of inputs given as a tuple, a dict or one tensor."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}
