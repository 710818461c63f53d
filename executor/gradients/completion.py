"""The gradients of a step from its last backward to the optimizer: complete, divided, added up, clipped or dropped.

Once a step they are summed over ranks, gradients that no rank has are left out, and lanes are held to the same ones.
Then they are divided by the total weight of the losses, those of earlier calls are added where calls accumulate, their
norm is taken, and what is not finite is dropped. Leaves out how sums are ordered (`reduction`), and losses.
"""

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from executor.communication.borders import check_lanes
from executor.context import RankContext
from executor.gradients.clipping import by_number, clip
from executor.gradients.gradient_presence import Reached
from executor.gradients.losses import StepLosses
from executor.gradients.reduction import Reduction
from executor.plan_match.options import RunOptions
from executor.stages.parallelize import DividedStages
from executor.stages.stage import Stage
from executor.stages.user_parallelize import own_part, settle
from simulator.actions import Action, Kind


@dataclass(frozen=True, slots=True)
class LastStep:
    """What a step was, on every rank alike.

    Attributes
    ----------
    loss : float
    gradient_norm : float or None
        Over all ranks, before clipping; None where nobody asked, and of a call that accumulates.
    skipped : bool
        Whether the optimizer was not stepped, for loss or gradients were not finite.
    """

    loss: float
    gradient_norm: float | None
    skipped: bool


class StepGradients:
    """The gradients of one rank's parameters.

    Parameters
    ----------
    context : RankContext
    options : RunOptions
        What is asked of their norm.
    stages : mapping of int to Stage
        This rank's.
    parameters : mapping
        This rank's trainable ones, by name.
    divided : DividedStages
    reached : Reached

    Attributes
    ----------
    reduction : Reduction
    norm : torch.Tensor or None
        Of the last step's gradients over all ranks, before they were clipped; None where nobody asks.
    skipped : bool
        Whether the last step's gradients were dropped.
    """

    def __init__(
        self,
        context: RankContext,
        options: RunOptions,
        stages: Mapping[int, Stage],
        parameters: Mapping[str, nn.Parameter],
        divided: DividedStages,
        reached: Reached,
    ) -> None:
        self._context, self._options, self._stages, self._parameters = context, options, stages, parameters
        self._divided, self._reached = divided, reached
        self._checks_lanes = any(stage.config.tensor > 1 for stage in context.plan.stages)
        self._accumulates, self._are_complete = False, False
        self._earlier: list[torch.Tensor | None] = []  # gradients of the calls before, while they accumulate
        self.reduction = Reduction(context, parameters)
        self.norm: torch.Tensor | None = None
        self.skipped = False

    def begin(self, accumulates: bool) -> None:
        """Start a step, whose gradients stay for the next one to add its own if it accumulates."""
        # As they are now: an optimizer's zero_grad between two calls clears what they have added up.
        self._earlier = [parameter.grad for parameter in self._parameters.values()] if self._accumulates else []
        self._accumulates, self._are_complete = accumulates, False
        self.norm, self.skipped = None, False
        self._reached.begin(self._stages)
        clear(self._parameters)
        self.reduction.begin()
        self._divided.begin()

    def rehearse(self) -> None:
        """Run each stage that is not divided once on zeros, before the first step: those that are have run so."""
        for index, stage in self._stages.items():
            if index not in self._divided.views:
                stage.rehearse(self._context.microbatches_of(index)[0], self._context.device)
        divided = self._divided.views
        had = {name for name, parameter in self._parameters.items() if parameter.grad is not None}
        self._leave_out(had.union(*(self._context.owned[index] for index in divided)), divided)
        clear(self._parameters)

    def reduce(self, stage: int) -> None:
        """Sum what a stage's gradients are still to be summed of: they are complete on this rank."""
        self._divided.reduce([stage])
        self.reduction.stage_is_done(stage)

    def complete(self, losses: StepLosses) -> None:
        """Complete the gradients, once a step; collective."""
        if self._are_complete:
            return
        self._are_complete = True
        self._divided.reduce(self._stages)
        self._divided.finish()
        self.reduction.finish()
        self._leave_out(() if self._reached.are_agreed else self.reduction.had())
        settle(self._parameters.values() if self._divided.views else ())
        if self._checks_lanes:
            self._checks_lanes = False
            with self._context.groups.refusing_alike():
                own = {s: {n: self._parameters[n] for n in self._context.owned[s]} for s in self._stages}
                check_lanes(self._context, own)
        divisor = self._divisor(losses)
        if losses.weighted is not False:  # what losses are is known after a step: reading it here would stop the device
            gradients = [own_part(p.grad) for p in self._parameters.values() if p.grad is not None]
            by_number(gradients, divisor, torch._foreach_div_)
        self._add_earlier()
        if not self._accumulates:  # the sum of all calls is clipped, and no part of it
            self._judge(losses)

    def clip(self, max_norm: float | None) -> torch.Tensor:
        """Scale all ranks' gradients so that their global 2-norm is at most `max_norm`; returns the norm before."""
        return clip(self._context, self._parameters, max_norm)

    def tell_of_replaced(self) -> None:
        """Say that gradients do not add up, where a plain loop's would; the device is waited for."""
        if self._accumulates or self._context.rank:
            return
        earlier = next((own_part(p.grad) for p in self._parameters.values() if p.grad is not None), None)
        if earlier is not None and earlier.any():
            print(
                "pipe.step replaces gradients of the step before, which nobody has cleared: a plain loop adds them up, "
                "and so does pipe.step after a call with accumulate=True; the optimizer's zero_grad clears them",
                file=sys.stderr,
                flush=True,
            )

    def _leave_out(self, had: Iterable[str], unseen: Collection[int] = ()) -> None:
        """Leave no gradients, nor zeros, to what no rank has one for; collective once, where ranks agree on that."""
        without = self._reached.left_out
        if not self._reached.are_agreed:
            without = self._reached.agree(self._stages, had, self._context.groups, unseen)
            self.reduction.leave_alone(without)
        for name in without & self._parameters.keys():
            self._parameters[name].grad = None

    def _divisor(self, losses: StepLosses) -> torch.Tensor:
        """Return what weighted gradients are divided by; the wait for it is noted."""
        recorder = self.reduction.recorder if self._context.groups.size > 1 else None
        start = recorder.mark() if recorder is not None else None
        divisor = losses.divisor()
        if recorder is not None:
            recorder.note(Action(Kind.REDUCE, max(self._stages)), "collective", start, waits=True)
        return divisor

    def _add_earlier(self) -> None:
        """Add the gradients of earlier calls that accumulate."""
        for parameter, gradient in zip(self._parameters.values(), self._earlier, strict=False):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._earlier = []

    def _judge(self, losses: StepLosses) -> None:
        """Take the norm and clip to it, and drop what is not finite, where that is asked for."""
        if self._options.takes_norm:
            self.norm = self.clip(self._options.max_norm)
        if self._options.skip_nonfinite:
            assert self.norm is not None
            self.skipped = not (math.isfinite(losses.result().value) and math.isfinite(float(self.norm)))
            if self.skipped:
                clear(self._parameters)


def clear(parameters: Mapping[str, nn.Parameter]) -> None:
    """Leave no gradients of parameters."""
    for parameter in parameters.values():
        parameter.grad = None
