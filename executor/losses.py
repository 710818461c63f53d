"""The loss of a step: each rank's share of it, and their sum.

A scalar loss is averaged over micro-batches; of a (sum, weight) loss both are summed and divided at the end. Leaves
out gradients, which `stage` scales in the same way.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from executor.groups import Company
from executor.stage import Stage


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Sum and weight of the losses that one rank saw in a step; the step's loss is total sum / total weight."""

    total: float
    weight: float
    weighted: bool

    @property
    def value(self) -> float:
        """The loss."""
        return self.total / self.weight


def own_loss(stages: Iterable[Stage]) -> StepLoss:
    """Return what the stages of one rank have seen in the last step."""
    total = weight = 0.0
    weighted = False
    for stage in stages:
        for loss, own in stage.losses:
            share = stage.multiple / stage.num_microbatches if own is None else 1.0
            total += float(loss) * share
            weighted = own is not None
            weight += 0.0 if own is None else float(own)
    return StepLoss(total, weight if weighted else 1.0, weighted)


class LossSum:
    """The sum of all ranks' losses, on its way from when each knows its own: nobody waits for it at the step's end.

    Parameters
    ----------
    own : StepLoss
    company : Company
    """

    def __init__(self, own: StepLoss, company: Company) -> None:
        self._own, self._company = own, company
        values = [own.total, own.weight if own.weighted else 0.0, own.weighted]
        self._values = torch.tensor(values, dtype=torch.float64)
        self._work = company.control.allreduce([self._values]) if company.size > 1 else None

    def result(self) -> StepLoss:
        """Return the loss over all ranks, once it is there."""
        if self._work is None:
            return self._own
        with self._company.waiting():
            self._work.wait()
        total, weight, weighted = self._values.tolist()
        return StepLoss(total, weight if weighted else 1.0, weighted > 0)
