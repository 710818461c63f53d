"""Buffers that forwards change (BatchNorm's averages), agreed among the replicas of a stage.

Each replica's forwards see some of a step's micro-batches, and nothing in training reads the averages; so they are
agreed when somebody does: before an evaluation, and before a state is saved. Then every replica holds the mean of all,
and of what counts or sums up the sum of all since the last time. How a forward writes a buffer is asked of the forward:
it runs on the buffer as it is and on another one. A stage with replicas that reads what it writes, or writes in another
way, is refused. Leaves out making averages what one process would have: there they forget by every micro-batch, a
replica's by every one of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from costmodel.errors import DoesNotMatch
from executor.communication.borders import tried
from executor.context import RankContext
from executor.stages.stage import Stage


@dataclass(slots=True)
class _Agreed:
    """A stage's buffers and what they held when its replicas agreed on them last."""

    ranks: tuple[int, ...]
    buffers: tuple[torch.Tensor, ...]
    before: list[torch.Tensor]


def _summed_buffers(stage: Stage, first: int, device: torch.device) -> list[torch.Tensor]:
    """Return the buffers to which each forward of a stage with replicas adds something, whatever they hold.

    Parameters
    ----------
    stage : Stage
    first : int
        A micro-batch with which it may be tried.
    device : torch.device

    Raises
    ------
    DoesNotMatch
        When the stage reads what it writes, or writes something that is neither a sum nor a moving average.
    """
    found = []
    for one in stage.written:
        if one.is_average:
            continue
        kind = "" if one.is_read or one.is_parameter else _kind(stage, first, device, one.tensor)
        if not kind:
            how = "and reads it, too" if one.is_read or one.is_parameter else "neither as a sum nor as a moving average"
            raise DoesNotMatch(
                f"stage {stage.index} has replicas and its forward writes {one.name!r} {how}: each replica would go on "
                "with one of its own; plan it without replicas (--data 1, or pin what writes it to one rank)"
            )
        found += [one.tensor] if kind == "sum" else []
    return found


def _kind(stage: Stage, first: int, device: torch.device, buffer: torch.Tensor) -> str:
    """Return how a forward writes a buffer: `sum`, `average`, or nothing for another way."""
    before, outcomes = buffer.detach().clone(), []
    step = (
        torch.ones_like(before)
        if not before.is_floating_point()
        else torch.linspace(0.5, 1.5, before.numel(), dtype=before.dtype, device=before.device).view_as(before)
    )
    for start in (before, before + step):
        generator = torch.Generator().manual_seed(0)
        buffer.data.copy_(start)
        tried(
            stage,
            first,
            device,
            lambda shape, dtype, source=generator: torch.randn(shape, generator=source).to(dtype),
            lambda: outcomes.append(buffer.detach().clone()),
        )
    buffer.data.copy_(before)
    moved = (outcomes[1] - outcomes[0]).double() / step.double()
    share = float(moved.mean()) if moved.numel() else 1.0
    if not bool(((moved - share).abs() <= NEAR).all()):
        return ""
    return "sum" if abs(share - 1) <= NEAR else "average" if 0 < share < 1 else ""


NEAR = 1e-3
"""By how much shares of what a buffer held may differ, in its own digits."""


class BufferSync:
    """Buffers of a rank's replicated stages.

    Parameters
    ----------
    context : RankContext
    stages : mapping of int to Stage
        This rank's.

    Raises
    ------
    DoesNotMatch
        When a stage with replicas writes something that is neither a sum nor a moving average.
    """

    def __init__(self, context: RankContext, stages: Mapping[int, Stage]) -> None:
        self._groups, self._device = context.groups, context.device
        ranks = {index: context.lanes.replicas(index, context.rank) for index in sorted(stages)}
        replicated = [index for index, others in ranks.items() if len(others) > 1]
        self._summed = {
            id(buffer)
            for index in replicated
            for buffer in _summed_buffers(stages[index], context.microbatches_of(index)[0], context.device)
        }
        self._stages = [
            _Agreed(ranks[index], kept, [buffer.detach().clone() for buffer in kept])
            for index in replicated
            if (kept := tuple(b for b in stages[index].buffers if b.dtype is not torch.bool))
        ]

    def agree(self) -> None:
        """Make all replicas of each stage hold the same; collective over them."""
        for stage in self._stages:
            group = self._groups.group_on(stage.ranks)
            moved = [not torch.equal(now, then) for now, then in zip(stage.buffers, stage.before, strict=True)]
            changed = torch.tensor(moved, dtype=torch.int64, device=self._device)
            with self._groups.waiting(stage.ranks):
                group.allreduce([changed]).wait()
            for buffer, before, is_changed in zip(stage.buffers, stage.before, changed.tolist(), strict=True):
                if is_changed:
                    counts = id(buffer) in self._summed or not (buffer.is_floating_point() or buffer.is_complex())
                    own = buffer - before if counts else buffer.detach() / len(stage.ranks)
                    with self._groups.waiting(stage.ranks):
                        group.allreduce([own]).wait()
                    buffer.data.copy_(before + own if counts else own)
                    before.copy_(buffer)

    def restart(self) -> None:
        """Take what the buffers hold, after they were loaded, for what all replicas have agreed on."""
        for stage in self._stages:
            stage.before = [buffer.detach().clone() for buffer in stage.buffers]

    def close(self) -> None:
        """Agree no more."""
        self._stages.clear()
