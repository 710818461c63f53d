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
    """A stage's buffers and what they held when its replicas agreed on them last."""

    ranks: tuple[int, ...]
    buffers: tuple[torch.Tensor, ...]
    before: list[torch.Tensor]


class Averages:
    """Buffers of a rank's replicated stages.

    Parameters
    ----------
    company : Company
    device : torch.device
    ranks : mapping of int to tuple of int
        That hold the same of each stage of this rank.
    buffers : mapping of int to sequence of torch.Tensor
        What each stage of this rank reads.
    """

    def __init__(
        self,
        company: Company,
        device: torch.device,
        ranks: Mapping[int, tuple[int, ...]],
        buffers: Mapping[int, Sequence[torch.Tensor]],
    ) -> None:
        self._company, self._device = company, device
        self._stages = [
            _Agreed(ranks[stage], kept, [buffer.detach().clone() for buffer in kept])
            for stage, own in sorted(buffers.items())
            if len(ranks[stage]) > 1 and (kept := tuple(b for b in own if b.dtype is not torch.bool))
        ]

    def agree(self) -> None:
        """Make all replicas of each stage hold the same; collective over them."""
        for stage in self._stages:
            group = self._company.group_on(stage.ranks)
            moved = [not torch.equal(now, then) for now, then in zip(stage.buffers, stage.before, strict=True)]
            changed = torch.tensor(moved, dtype=torch.int64, device=self._device)
            with self._company.waiting(stage.ranks):
                group.allreduce([changed]).wait()
            for buffer, before, is_changed in zip(stage.buffers, stage.before, changed.tolist(), strict=True):
                if is_changed:
                    counts = not (buffer.is_floating_point() or buffer.is_complex())
                    own = buffer - before if counts else buffer.detach() / len(stage.ranks)
                    with self._company.waiting(stage.ranks):
                        group.allreduce([own]).wait()
                    buffer.data.copy_(before + own if counts else own)
                    before.copy_(buffer)

    def close(self) -> None:
        """Agree no more."""
        self._stages.clear()
