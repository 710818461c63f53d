"""Buffers that forwards change (BatchNorm's averages), agreed among the replicas of a stage.

Each replica's forwards see some of a step's micro-batches, and nothing in training reads the averages; so they are
agreed when somebody does: before an evaluation, and before a state is saved. Then every replica holds the mean of all,
and of what counts (whole numbers) the sum of all since the last time. Leaves out making them what one process would
have: its averages forget by every micro-batch, a replica's by every one of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from executor.groups import Company


@dataclass(slots=True)
class _Agreed:
    """A stage's buffers with their versions and whole numbers when replicas agreed on them last."""

    ranks: tuple[int, ...]
    buffers: tuple[torch.Tensor, ...]
    versions: list[int]
    counts: list[torch.Tensor | None]


class Averages:
    """Buffers of a rank's replicated stages.

    Parameters
    ----------
    company : Company
    device : torch.device
    ranks : sequence of tuple of int
        Of each stage.
    buffers : mapping of int to sequence of torch.Tensor
        What each stage of this rank reads.
    """

    def __init__(
        self,
        company: Company,
        device: torch.device,
        ranks: Sequence[tuple[int, ...]],
        buffers: Mapping[int, Sequence[torch.Tensor]],
    ) -> None:
        self._company, self._device = company, device
        self._stages = [
            _noted(ranks[stage], tuple(b for b in own if b.dtype is not torch.bool))
            for stage, own in sorted(buffers.items())
            if len(ranks[stage]) > 1
        ]

    def agree(self) -> None:
        """Make all replicas of each stage hold the same; collective over them."""
        for stage in self._stages:
            group = self._company.group_on(self._device, stage.ranks)
            moved = [b._version != version for b, version in zip(stage.buffers, stage.versions, strict=True)]
            changed = torch.tensor(moved, dtype=torch.int64, device=self._device)
            with self._company.waiting(stage.ranks):
                group.allreduce([changed]).wait()
            for buffer, count, is_changed in zip(stage.buffers, stage.counts, changed.tolist(), strict=True):
                if not is_changed:
                    continue
                own = buffer.detach().clone() if count is None else buffer.detach() - count
                with self._company.waiting(stage.ranks):
                    group.allreduce([own]).wait()
                with torch.no_grad():
                    buffer.copy_(own / len(stage.ranks) if count is None else count + own)
            stage.versions, stage.counts = _marks(stage.buffers)

    def close(self) -> None:
        """Agree no more."""
        self._stages.clear()


def _noted(ranks: tuple[int, ...], buffers: tuple[torch.Tensor, ...]) -> _Agreed:
    return _Agreed(ranks, buffers, *_marks(buffers))


def _marks(buffers: Sequence[torch.Tensor]) -> tuple[list[int], list[torch.Tensor | None]]:
    counts = [None if b.is_floating_point() or b.is_complex() else b.detach().clone() for b in buffers]
    return [buffer._version for buffer in buffers], counts
