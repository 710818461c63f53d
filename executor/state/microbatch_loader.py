"""A step's batch, cut into the micro-batch groups that this rank's stages read.

A batch that is not as the model was captured, or not as long as the plan's step, is refused in words before a rank
waits for another. Leaves out how the user loads data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TARGETS, Split, TrainingModel, batched_dimensions, describe, split_batch
from costmodel.capture.writes import inputs_written_by
from costmodel.errors import DoesNotMatch, UsageError
from executor.context import RankContext


class MicrobatchLoader:
    """Micro-batch groups of the batch that was loaded last.

    Parameters
    ----------
    context : RankContext
    """

    def __init__(self, context: RankContext) -> None:
        capture, batch = context.capture, context.plan.batch
        for name in inputs_written_by(capture):
            raise DoesNotMatch(
                f"the forward changes its input {name!r} in place, which is the batch's own memory on one rank and not "
                "on the others, while other micro-batches still need it: let it work on a copy (clone())"
            )
        self._capture, self._device = capture, context.device
        self.batch_size, self._num_microbatches = batch.global_size, batch.num_microbatches
        self.microbatch_size = batch.microbatch_size
        self._batch = capture.model
        self._captured, self._spec = _flat(capture.model), pytree.tree_structure(_arguments_of(capture.model))
        self._given = [*self._captured, *_targets_of(capture.model)]
        self._groups: dict[tuple[int, int], tuple[dict[str, Any], Any]] = {}

    @property
    def num_real(self) -> int | None:
        """How many micro-batches the batch fills, where it is a short one."""
        return None if self._batch.batch == self.batch_size else self._batch.batch // self.microbatch_size

    def load(self, inputs: Any, targets: Any = None, *, short: bool = False, multiple: int = 1) -> None:
        """Take the inputs (tuple or dict) and targets of a whole step; what no rank reads may be None.

        A `short` batch may hold fewer samples, as many as fill some actions of `multiple` micro-batches.

        Raises
        ------
        UsageError
            When there are more or fewer samples than the plan's step takes, a tensor has another shape than the
            model was captured with, or what is no tensor has another value.
        """
        leaves = self._in_order(*as_arguments(inputs))
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        batch = replace(self._capture.model, args=args, kwargs=kwargs, targets=targets, batch=self.batch_size)
        given = [replace(like, value=value) for like, value in zip(self._captured, leaves, strict=True)]
        if short:
            batch = replace(batch, batch=self._num_samples(given, batch, multiple))
        self._check(given, batch)
        if self._device.type == "cuda":  # from memory that stays in place a copy waits for nothing
            batch = replace(batch, args=_pinned(args), kwargs=_pinned(kwargs), targets=_pinned(targets))
        self._batch, self._given = batch, [*given, *_targets_of(batch)]
        self._groups.clear()

    @property
    def num_samples(self) -> int:
        """How many samples the batch that is loaded holds."""
        return self._batch.batch

    def given(self) -> list["Leaf"]:
        """Return the leaves of the batch that is loaded, inputs as the model was captured, then the targets'."""
        return self._given

    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the leaves of arguments by their paths, in the order in which the model was captured.

        None for a whole structure stands for each leaf of it.
        """
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec == self._spec:
            return leaves
        found = dict(pytree.tree_flatten_with_path((args, kwargs))[0])
        wanted = [leaf.path for leaf in self._captured]
        above = [next((path[:n] for n in range(len(path), 1, -1) if path[:n] in found), None) for path in wanted]
        fits = all(
            one is not None and (one == path or found[one] is None) for one, path in zip(above, wanted, strict=True)
        )
        if not fits or set(found) - {path[:n] for path in wanted for n in range(len(path) + 1)}:
            there, names = (", ".join(sorted(map(_named, row))) or "nothing" for row in (found, wanted))
            raise UsageError(f"the batch has {there}; the model was captured with {names}")
        return [found[one] for one in above if one is not None]

    def _num_samples(self, given: Sequence["Leaf"], batch: TrainingModel, multiple: int) -> int:
        """Return how many samples a short batch holds, once it is known that they fill whole actions."""
        like = [*self._captured, *_targets_of(self._capture.model)]
        pairs = [
            (leaf.value, one)
            for leaf, one in zip([*given, *_targets_of(batch)], like, strict=False)
            if isinstance(leaf.value, torch.Tensor) and leaf.value.dim()
        ]
        lengths = [int(v.shape[one.dimension]) for v, one in pairs if one.dimension not in (None, BY_FUNCTION)]
        size = self.microbatch_size * multiple
        found = lengths[0] if lengths else self.batch_size
        if not 0 < found <= self.batch_size or found % size:
            raise UsageError(
                f"a short batch of {found} samples does not fill actions of {size} samples, of which the plan's step "
                f"takes {self.batch_size // size}: give a multiple of {size} (drop the rest), or fill it up with "
                "samples that weigh nothing in a (sum, weight) loss"
            )
        for value, one in pairs:
            if one.dimension is None and value.shape[:1] == (found,):
                raise UsageError(
                    f"a short batch of {found} samples cannot be told from {one.name}, which is as long and not cut "
                    "by samples: name it in split= (split={...: None}), or leave the short batch out"
                )
        return found

    def _check(self, given: Sequence["Leaf"], batch: TrainingModel) -> None:
        """Refuse a batch that is not as long as a step or not as it was captured."""
        for leaf, like in zip(given, self._captured, strict=True):
            if not isinstance(like.value, torch.Tensor):
                _check_constant(leaf, like)
        targets, captured = ({one.path: one for one in _targets_of(model)} for model in (batch, self._capture.model))
        if batch.targets is None and any(one.value is not None for one in captured.values()):
            raise UsageError("no targets are given, and the loss takes some: pass them as the second argument")
        if targets.keys() != captured.keys():
            there, names = (", ".join(one.name for one in row.values()) for row in (targets, captured))
            raise UsageError(f"the batch has {there}; the model was captured with {names}")
        pairs = [*zip(given, self._captured, strict=True), *((targets[path], captured[path]) for path in targets)]
        for leaf, like in pairs:
            if not isinstance(like.value, torch.Tensor) or leaf.value is None:
                continue
            if not isinstance(leaf.value, torch.Tensor):
                shown = repr(leaf.value) if isinstance(leaf.value, bool | int | float | str) else describe(leaf.value)
                raise UsageError(f"{leaf.name} is {shown}; the model was captured with a tensor there")
            self._check_tensor(leaf.name, leaf.value, like.value, like.dimension, batch.batch)

    def _check_tensor(
        self, name: str, tensor: torch.Tensor, like: torch.Tensor, dimension: int | None, batch_size: int
    ) -> None:
        if tensor.dtype != like.dtype and (tensor.is_floating_point() or like.is_floating_point()):
            raise UsageError(f"{name} is of {tensor.dtype}; the model was captured with {like.dtype}")
        if dimension == BY_FUNCTION:
            return
        wanted = [batch_size if i == dimension else length for i, length in enumerate(like.shape)]
        if list(tensor.shape) == wanted:
            return
        if dimension is not None and tensor.dim() == like.dim() and tensor.shape[dimension] != batch_size:
            raise UsageError(
                f"{name} holds {tensor.shape[dimension]} samples, and the plan's step takes {batch_size}: give a short "
                "last batch with short=True, leave it out (drop_last), or fill it up with samples that weigh nothing "
                "in a (sum, weight) loss"
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
        for name in names:
            if values[name] is None:
                raise UsageError(
                    f"the batch has None for the input {name!r}, which this rank reads (pipe.inputs_needed)"
                )
        moved = {name: self._moved(values[name]) for name in names}
        return moved, self._moved(targets) if with_targets else None

    def _group(self, first: int, multiple: int) -> tuple[dict[str, Any], Any]:
        """Return the raw inputs and targets of the micro-batches [first, first + multiple), cut once a batch."""
        if (first, multiple) not in self._groups:
            number, count = first // multiple, (self.num_real or self._num_microbatches) // multiple
            group = split_batch(self._batch, number if number < count else 0, count)  # the first one stands in
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
    """

    path: tuple[Any, ...]
    key: str | int
    value: Any
    dimension: int | None

    @property
    def name(self) -> str:
        """What people call it."""
        return TARGETS + pytree.keystr(self.path) if self.key == TARGETS else _named(self.path)


def _arguments_of(model: TrainingModel) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return model.args, dict(model.kwargs)


def _named(path: tuple[Any, ...]) -> str:
    """Return an input's name by its path in (args, kwargs)."""
    return f"input {_key(path)!r}{pytree.keystr(path[2:])}" if len(path) > 1 else "arguments"


def _key(path: tuple[Any, ...]) -> str | int:
    found: str | int = path[1].idx if isinstance(path[1], pytree.SequenceKey) else path[1].key
    return found


def _flat(model: TrainingModel) -> list[Leaf]:
    """Return the leaves of a model's inputs."""
    leaves, _ = pytree.tree_flatten_with_path(_arguments_of(model))
    dimensions = batched_dimensions(model)
    found = []
    for (path, value), dimension in zip(leaves, dimensions, strict=True):
        by_function = callable(model.split.get(_key(path)))
        found.append(Leaf(path, _key(path), value, BY_FUNCTION if by_function else dimension))
    return found


def _targets_of(model: TrainingModel) -> list[Leaf]:
    """Return the leaves of a model's targets."""
    if not model.has_targets:
        return []
    split: dict[str | int, Split] = {0: model.split[TARGETS]} if TARGETS in model.split else {}
    alone = replace(model, args=(model.targets,), kwargs={}, split=split)
    return [Leaf(leaf.path[2:], TARGETS, leaf.value, leaf.dimension) for leaf in _flat(alone)]


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


def as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of inputs given as a tuple, a dict or one tensor."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}
