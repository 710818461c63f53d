"""The loss of a step: each rank's share of it, and their sum, on the device: nobody there waits for the host.

A scalar loss is averaged over micro-batches; of a (sum, weight) loss both are summed and divided at the end. So that
one is exact where micro-batches are of unlike shapes; a scalar, of which nobody knows over what it is an average, is
refused there on all ranks alike, before an optimizer steps. Samples of the batch travel with the sum, and where they
differ between ranks the batch is compared. Leaves out gradients, which `stage` scales in the same way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from executor.communication.groups import ProcessGroups, RefusedAlike
from executor.context import RankContext
from executor.stages.stage import Stage
from executor.state.same_batches import OneBatch
from simulator.actions import Action, Kind


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


def refuse_scalar(loss: StepLoss) -> None:
    """Refuse a loss of micro-batches of unlike shapes that says no weights.

    Raises
    ------
    RefusedAlike
    """
    if not loss.weighted:
        raise RefusedAlike(
            "micro-batches of the step are of unlike shapes, and the loss is a plain scalar: the average over "
            "micro-batches is not that over their samples or tokens; return (sum, weight) from the loss, or give "
            "micro-batches of one shape"
        )


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


class StepLosses:
    """The losses of a rank's stages in each step, and when their sum sets out.

    A device would run the sum where it is issued, and hold up its stream: there it sets out when somebody needs it,
    else with the rank's last loss.

    Parameters
    ----------
    context : RankContext
    stages : mapping of int to Stage
        This rank's.
    one_batch : OneBatch

    Attributes
    ----------
    weighted : bool or None
        Whether losses have weights; None before the first step is done.
    """

    def __init__(self, context: RankContext, stages: Mapping[int, Stage], one_batch: OneBatch) -> None:
        self._context, self._stages, self._one_batch = context, stages, one_batch
        self._has_unlike = False
        forwards = [action.stage for action in context.order if action.kind is Kind.F]
        self._in_a_step = sum(stages[index].part.has_loss for index in forwards if index in stages)
        self._sum: LossSum | None = None
        self.weighted: bool | None = None

    def begin(self, step: int, has_unlike: bool) -> None:
        """Start a step, some of whose micro-batches are of unlike shapes or none."""
        self._has_unlike = has_unlike
        # Looked at before the first action: no host stands still between that and OPT.
        self._sampled, self._sum = self._one_batch.sample(step), None
        self._left = -1 if self._context.works_behind_host else self._in_a_step
        if not self._left:
            self._set_out()

    def note(self, action: Action) -> None:
        """Note that an action is done: the sum may set out."""
        if action.kind is Kind.F and self._stages[action.stage].part.has_loss:
            self._left -= 1
            if not self._left:
                self._set_out()

    def divisor(self) -> torch.Tensor:
        """Return what weighted gradients are divided by; the sum is under way then. Collective."""
        divisor = (self._sum or self._set_out()).divisor()
        if self._has_unlike and not self.weighted:  # known after a step: reading it would stop the device
            refuse_scalar(self.result())
        if not self._context.works_behind_host:
            self._compare()
        return divisor

    def result(self) -> StepLoss:
        """Return the step's loss over all ranks, once it is there."""
        assert self._sum is not None
        return self._sum.result()

    def finish(self) -> StepLoss:
        """End a step, and return its loss over all ranks; collective where batches differ."""
        loss = self.result()
        if self._context.works_behind_host:
            self._compare()
        self.weighted = loss.weighted
        return loss

    def _set_out(self) -> LossSum:
        self._sum = LossSum(own_loss(self._context, self._stages), self._context.groups, self._sampled)
        return self._sum

    def _compare(self) -> None:
        """Compare the whole batch where samples differ: each rank has the same sums."""
        assert self._sum is not None
        if self._context.groups.size > 1 and self._one_batch.differ(self._sum.beside()):
            self._one_batch.compare()
