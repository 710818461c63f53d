"""The loss of the first step's whole batch, beside the mean of its micro-batches' losses: told once, on stderr.

A loss that does not separate over micro-batches (a sum, a masked mean, in-batch negatives) is another one then, and its
gradients too; nothing else shows it. Told where one rank has all outputs and they are small. Leaves out stages that
recompute, replicas of the last stage, and batches whose samples stand in another dimension than the first.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TrainingModel
from costmodel.capture.parts import Part
from costmodel.model.graph import LOSS
from executor.context import RankContext
from executor.model.users_loss import loss_left_alone
from executor.stages.evaluation import seen_by
from executor.stages.stage import Stage

MOST_BYTES = 64 * 2**20
"""Of outputs and targets that are kept for it."""

SEPARATE = 1e-3
"""Part of the loss by which that of the whole batch may be another and still be rounding."""


class UndividedLoss:
    """Sees what the loss of one stage is computed from in a step.

    Parameters
    ----------
    stage : Stage
        Alone with the loss. Its part is another one until `told`.
    size : int
        Samples of one of its actions.
    """

    def __init__(self, stage: Stage, size: int) -> None:
        self._stage, self._size = stage, size
        self._part: Part = stage.part
        self._seen: list[tuple[tuple[Any, Any], list[tuple[torch.Tensor, int]]]] = []
        self._left = MOST_BYTES
        stage.part = seen_by(self._see, stage.part)

    def _see(self, output: Any, targets: Any = None) -> None:
        kept = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (output, targets))
        tensors = [leaf for leaf in pytree.tree_leaves(kept) if isinstance(leaf, torch.Tensor)]
        self._left -= sum(tensor.nbytes for tensor in tensors)
        self._seen = [*self._seen, (kept, [(tensor, tensor._version) for tensor in tensors])] if self._left >= 0 else []

    def tell(self, loss: float) -> None:
        """Give the stage its part back, and print both losses where there are two."""
        self._stage.part, seen, self._seen = self._part, self._seen, []
        count = self._stage.num_microbatches // self._stage.multiple
        changed = any(tensor._version != version for _, row in seen for tensor, version in row)
        if self._left < 0 or len(seen) != count or changed:
            return
        if moves := getattr(self._part.capture.model.loss, "moves", ""):
            text = f"the loss depends on what it changes itself ({moves}): it is called once a micro-batch, in turn"
            print(text, file=sys.stderr, flush=True)
            return
        with torch.no_grad(), loss_left_alone(self._part):
            found = _loss_of(self._part.capture.model, [given for given, _ in seen], self._size)
        if found is None:
            return
        text = f"loss of the first step: {loss:.6g} by micro-batches, {found:.6g} of the undivided batch"
        if abs(found - loss) > SEPARATE * max(abs(found), abs(loss)):
            text += (
                ": this loss does not separate over micro-batches (a sum, a masked mean, in-batch negatives), and what "
                "is trained is the mean of theirs; return (sum, weight) for a mean over what is not masked, or plan "
                "with one micro-batch"
            )
        print(text, file=sys.stderr, flush=True)


def undivided_loss(context: RankContext, stages: Mapping[int, Stage], has_unlike: bool) -> UndividedLoss | None:
    """Return what sees the whole batch's outputs, if this rank alone has them all, they all count and can be joined."""
    for index, stage in stages.items():
        alone = len(context.lanes.blocks[index]) == 1 and context.lanes.lane_of(index, context.rank) == 0
        lone = alone and _with_loss(context) == [index] and not stage.recomputes
        if stage.part.has_loss and lone and not stage.num_real and not has_unlike:
            return UndividedLoss(stage, stage.multiple * context.plan.batch.microbatch_size)
    return None


def calls_of_loss(context: RankContext, stages: Mapping[int, Stage]) -> tuple[str, str]:
    """Return why no rank calls the loss once a micro-batch in turn, and why none calls it for all of them."""
    found, several = _with_loss(context), ""
    if len(found) > 1 or any(len(context.lanes.blocks[index]) > 1 for index in found):
        several = "several ranks call it, each for micro-batches of its own"
    lone = several
    for stage in (stage for stage in stages.values() if stage.part.has_loss and not several):
        lone = "its stage recomputes and calls it twice" if stage.recomputes else ""
        lone = "it is called for several micro-batches at once" if stage.multiple > 1 else lone
    return lone, several


def _with_loss(context: RankContext) -> list[int]:
    return [index for index, stage in enumerate(context.plan.stages) if LOSS in stage.operators]


def _loss_of(model: TrainingModel, seen: Sequence[tuple[Any, Any]], size: int) -> float | None:
    """Return the loss of all micro-batches together; None where they cannot be joined."""
    rows = [pytree.tree_flatten(one) for one in seen]
    joined = [_joined([leaves[i] for leaves, _ in rows], size) for i in range(len(rows[0][0]))]
    if any(leaf is _UNJOINED for leaf in joined):
        return None
    output, targets = pytree.tree_unflatten(joined, rows[0][1])
    try:
        loss, weight = model.evaluate(output, targets)
    except Exception:  # the user's own; without it nothing is told, and nothing else is amiss
        return None
    total = 1.0 if weight is None else float(weight)
    return float(loss) / total if total else None


_UNJOINED = object()


def _joined(leaves: Sequence[Any], size: int) -> Any:
    first = leaves[0]
    if isinstance(first, torch.Tensor):
        if first.shape[:1] == (size,):
            return torch.cat(list(leaves))
        return first if all(torch.equal(first, leaf) for leaf in leaves) else _UNJOINED
    return first if all(leaf is first or leaf == first for leaf in leaves) else _UNJOINED
