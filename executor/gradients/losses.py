"""The loss of a step: each rank's share of it, and their sum, on the device: nobody there waits for the host.

A scalar loss is averaged over micro-batches; of a (sum, weight) loss both are summed and divided at the end. Leaves
out gradients, which `stage` scales in the same way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from executor.communication.groups import ProcessGroups
from executor.context import RankContext
from executor.stages.stage import Stage


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Sum and weight of a step's losses over all ranks; the step's loss is total sum / total weight."""

    total: float
    weight: float
    weighted: bool

    @property
    def value(self) -> float:
        """The loss; no number where nothing has any weight, as tensors divide."""
        return self.total / self.weight if self.weight else math.nan


def own_loss(context: RankContext, stages: Mapping[int, Stage]) -> torch.Tensor:
    """Return what the stages of one rank have seen in the last step: sum, weight, and how many losses had a weight.

    Lanes see the same, of which the first one's counts.
    """
    seen = torch.zeros(3, dtype=torch.float64, device=context.device)
    for index, stage in stages.items():
        for loss, own in stage.losses if context.lanes.lane_of(index, context.rank) == 0 else ():
            seen[0] += loss.double() * (stage.share if own is None else 1.0)
            if own is not None:
                seen[1] += own.double()
                seen[2] += 1
    return seen


class LossSum:
    """The sum of all ranks' losses, on its way from when each knows its own: nobody waits for it at the step's end.

    Parameters
    ----------
    own : torch.Tensor
        Of `own_loss`.
    groups : ProcessGroups
    beside : sequence of float
        Other numbers whose sums over all ranks are wanted; as many on each.
    """

    def __init__(self, own: torch.Tensor, groups: ProcessGroups, beside: Sequence[float] = ()) -> None:
        self._groups, self._device = groups, own.device
        values = torch.cat([own, torch.tensor(beside, dtype=own.dtype).to(own.device)]) if beside else own
        self._values = values if groups.asynchronous else values.cpu()
        self._work = groups.everyone().allreduce([self._values]) if groups.size > 1 else None

    def divisor(self) -> torch.Tensor:
        """Return what weighted gradients are divided by, 1 where losses have no weights; on the losses' device."""
        if self._work is not None:
            with self._groups.waiting():
                self._work.wait()
            self._groups.expects(self._device, (self._groups.rank + 1) % self._groups.size)
            self._work = None
        _, weight, weighted = self._values[:3]
        return torch.where(weighted > 0, weight, torch.ones_like(weight)).to(self._device)

    def result(self) -> StepLoss:
        """Return the loss over all ranks, once it is there."""
        self.divisor()
        total, weight, weighted = map(float, self._values[:3])
        return StepLoss(total, weight if weighted else 1.0, weighted > 0)

    def beside(self) -> list[float]:
        """Return the sums of the other numbers, once they are there."""
        self.divisor()
        found: list[float] = self._values[3:].tolist()
        return found
