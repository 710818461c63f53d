"""A step's batch, cut into the micro-batch groups that this rank's stages read, or given as micro-batches one by one.

A batch that is not as the model was captured, or not as long as the plan's step, is refused in words before a rank
waits for another. Shapes that follow from a step's own lengths are found here, too: each rank knows those of all
messages from the inputs. Leaves out how the user loads data.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TrainingModel, split_batch
from costmodel.capture.writes import inputs_written_by
from costmodel.errors import DoesNotMatch, UsageError
from executor.context import RankContext
from executor.state.batch_leaves import (
    BY_FUNCTION,
    Leaf,
    as_arguments,
    check_leaves,
    input_leaves,
    named,
    num_samples,
    target_leaves,
)

Microbatches = Sequence[tuple[Any, Any]]
"""Inputs and targets of micro-batches."""


class MicrobatchLoader:
    """Micro-batch groups of the batch that was loaded last.

    Parameters
    ----------
    context : RankContext

    Attributes
    ----------
    varies : bool
        Whether shapes of the step are not those that the model was captured with.
    has_unlike : bool
        Whether micro-batches of the step are of unlike shapes.
    """

    def __init__(self, context: RankContext) -> None:
        capture, batch = context.capture, context.plan.batch
        for name in inputs_written_by(capture):
            raise DoesNotMatch(
                f"the forward changes its input {name!r} in place, which is the batch's own memory on one rank and not "
                "on the others, while other micro-batches still need it: let it work on a copy (clone())"
            )
        self._capture, self._device = capture, context.device
        self._multiples = [stage.microbatch_multiple for stage in context.plan.stages]
        self.batch_size, self._num_microbatches = batch.global_size, batch.num_microbatches
        self.microbatch_size = batch.microbatch_size
        self._batch = capture.model
        self._each: list[TrainingModel] = []
        self._captured = input_leaves(capture.model)
        self._spec = pytree.tree_structure((capture.model.args, dict(capture.model.kwargs)))
        self._given = [*self._captured, *target_leaves(capture.model)]
        self._groups: dict[tuple[int, int], tuple[dict[str, Any], Any]] = {}
        self._lengths: dict[tuple[int, int], tuple[int, ...]] = {}
        self.varies = self.has_unlike = False

    @property
    def num_real(self) -> int | None:
        """How many micro-batches the batch fills, where it is a short one."""
        if self._each:
            return None if len(self._each) == self._num_microbatches else len(self._each)
        return None if self._batch.batch == self.batch_size else self._batch.batch // self.microbatch_size

    def load(self, inputs: Any, targets: Any = None, *, short: bool = False) -> None:
        """Take the inputs (tuple or dict) and targets of a whole step; what no rank reads may be None.

        A `short` batch may hold fewer samples, as many as fill some actions of each stage.

        Raises
        ------
        UsageError
            When there are more or fewer samples than the plan's step takes, a tensor has another shape than the
            model was captured with, or what is no tensor has another value.
        """
        given, batch = self._taken(inputs, targets)
        batch = replace(batch, batch=self.batch_size)
        if short:
            batch = replace(batch, batch=self._num_samples(given, batch))
        own = target_leaves(batch)
        check_leaves(given, own, self._capture.model, batch.batch)
        varies = any(
            _free_lengths(leaf) != _free_lengths(like) for leaf, like in zip(given, self._captured, strict=True)
        )
        if varies and any(leaf.value is None for leaf in given):
            raise UsageError(
                "the batch has other lengths than the model was captured with, and None for some inputs: give tensors "
                "of their shapes, whatever they hold"
            )
        self._take(self._pinned(batch), [], [*given, *own])
        self.varies, self.has_unlike = varies, False

    def load_each(self, microbatches: Microbatches, *, short: bool = False) -> None:
        """Take the inputs and targets of each micro-batch of a step, of whatever numbers of samples and free lengths.

        Raises
        ------
        UsageError
            When there are more or fewer of them than the plan has, or one is not as the model was captured.
        DoesNotMatch
            When stages take several micro-batches in one action.
        """
        if max(self._multiples) > 1:
            raise DoesNotMatch(
                "micro-batches are given one by one, and stages of the plan take several in one action: plan with "
                "multiples of 1 (another --schedule than graph-kfkb)"
            )
        wanted, found = self._num_microbatches, len(microbatches)
        if not 0 < found <= wanted or (found < wanted and not short):
            fewer = "; fewer are given with short=True" if 0 < found < wanted else ""
            raise UsageError(f"{found} micro-batches are given, and the plan's step has {wanted}{fewer}")
        each, leaves = list[TrainingModel](), list[Leaf]()
        for number, (inputs, targets) in enumerate(microbatches):
            given, batch = self._taken(inputs, targets, number)
            size = num_samples(given)
            batch = replace(batch, batch=self.microbatch_size if size is None else size)
            own = [replace(leaf, microbatch=number) for leaf in target_leaves(batch)]
            check_leaves(given, own, self._capture.model, batch.batch)
            self._capture.value_shapes.lengths([leaf.value for leaf in given])
            each, leaves = [*each, self._pinned(batch)], [*leaves, *given, *own]
        self._take(self._batch, each, leaves)
        self.varies, per = True, len(leaves) // len(each)
        self.has_unlike = len({_shapes_of(leaves[i : i + per]) for i in range(0, len(leaves), per)}) > 1

    def _take(self, batch: TrainingModel, each: list[TrainingModel], given: list[Leaf]) -> None:
        self._batch, self._each, self._given = batch, each, given
        self._groups.clear()
        self._lengths.clear()

    def lengths(self, first: int, count: int) -> tuple[int, ...]:
        """Return the lengths from which all shapes of a group of micro-batches follow (`costmodel.capture.lengths`)."""
        place = first if self._each else 0, count
        if place not in self._lengths:
            values, _ = self._group(*place)
            leaves = [values[name] for name in self._capture.inputs]
            self._lengths[place] = self._capture.value_shapes.lengths(leaves)
        return self._lengths[place]

    @property
    def num_samples(self) -> int:
        """How many samples the batch that is loaded holds."""
        return self._batch.batch

    def given(self) -> list[Leaf]:
        """Return the leaves of the batch that is loaded, inputs as the model was captured, then the targets'."""
        return self._given

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of all tensors of what is loaded."""
        return _shapes_of(self._given)

    def _taken(self, inputs: Any, targets: Any, microbatch: int | None = None) -> tuple[list[Leaf], TrainingModel]:
        """Return what was given as leaves and as the model's batch."""
        leaves = self._in_order(*as_arguments(inputs))
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        pairs = zip(self._captured, leaves, strict=True)
        given = [replace(like, value=value, microbatch=microbatch) for like, value in pairs]
        return given, replace(self._capture.model, args=args, kwargs=kwargs, targets=targets)

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
            there, names = (", ".join(sorted(map(named, row))) or "nothing" for row in (found, wanted))
            raise UsageError(f"the batch has {there}; the model was captured with {names}")
        return [found[one] for one in above if one is not None]

    def _num_samples(self, given: Sequence[Leaf], batch: TrainingModel) -> int:
        """Return how many samples a short batch holds, once it is known that they fill whole actions."""
        like = [*self._captured, *target_leaves(self._capture.model)]
        pairs = [
            (leaf.value, one)
            for leaf, one in zip([*given, *target_leaves(batch)], like, strict=False)
            if isinstance(leaf.value, torch.Tensor) and leaf.value.dim()
        ]
        lengths = [int(v.shape[one.dimension]) for v, one in pairs if one.dimension not in (None, BY_FUNCTION)]
        size = self.microbatch_size * math.lcm(*self._multiples)
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
            number = number if number < count else 0  # the first one stands in
            group = self._each[number] if self._each else split_batch(self._batch, number, count)
            self._groups[first, multiple] = self._capture.bind(group), group.targets
        return self._groups[first, multiple]

    def keys(self) -> list[str | int]:
        """Return, for each raw input in order, the name or position of the argument that it is a leaf of."""
        return [leaf.key for leaf in self._captured]

    def _pinned(self, batch: TrainingModel) -> TrainingModel:
        """Return a batch in memory that stays in place, from which a copy to a GPU waits for nothing."""
        if self._device.type != "cuda":
            return batch
        return replace(batch, args=_pinned(batch.args), kwargs=_pinned(batch.kwargs), targets=_pinned(batch.targets))

    def _moved(self, value: Any) -> Any:
        if self._device.type == "cpu":
            return value
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self._device, non_blocking=True), value)


def _pinned(values: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.pin_memory() if t.device.type == "cpu" else t, values)


def _free_lengths(leaf: Leaf) -> list[int]:
    return [leaf.value.shape[dimension] for dimension in sorted(leaf.free)]


def _shapes_of(leaves: Sequence[Leaf]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(leaf.value.shape) for leaf in leaves if isinstance(leaf.value, torch.Tensor))
