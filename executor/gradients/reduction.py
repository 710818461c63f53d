"""Sums of gradients over ranks: replicas of a stage, and parameters that several stages share.

Parameters are put into sets by the stages that own them; a set whose stages lie on several ranks is summed over all of
these in one all-reduce. It starts behind the last REDUCE of those stages on each rank, and behind the sums that come
before it in one order of all, which follows from the plan: a device that runs one sum at a time would else wait for
ever. It is waited for at the end of the step, so that a rank never blocks here while others need its backwards. Leaves
out sharding.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from costmodel.errors import DoesNotMatch
from executor.context import RankContext
from executor.gradients.allreduce_order import MESSAGES, order_allreduces
from executor.observe.recording import Recorder
from executor.stages.user_parallelize import axes_of, own_part
from simulator.actions import Action, Kind


@dataclass(slots=True)
class SharedSet:
    """Parameters owned by the same stages of this rank, behind `MESSAGES` where they wait for those, and all ranks.

    `without` are those that no rank has a gradient for, on which the ranks agree once: an optimizer leaves them alone,
    as it does in one process.
    """

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    parameters: dict[str, nn.Parameter]
    group: Any = None
    waiting: set[int] = field(default_factory=set)
    flying: list[tuple[Any, torch.Tensor, list[torch.Tensor]]] = field(default_factory=list)
    without: frozenset[str] = frozenset()


def stages_of_parameters(owned: Sequence[Iterable[str]]) -> dict[str, tuple[int, ...]]:
    """Return, for each parameter, the stages that read it, from what each stage reads."""
    found: dict[str, list[int]] = {}
    for stage, names in enumerate(owned):
        for name in names:
            found.setdefault(name, []).append(stage)
    return {name: tuple(stages) for name, stages in found.items()}


class Reduction:
    """All sums of gradients that one rank takes part in.

    Parameters
    ----------
    context : RankContext
    parameters : mapping
        Parameters by name.
    """

    def __init__(self, context: RankContext, parameters: Mapping[str, nn.Parameter]) -> None:
        groups, me = context.groups, context.rank
        self._groups, self._device = groups, context.device
        divided = {name for name, parameter in parameters.items() if "data" in axes_of(parameter)}
        by_stages: dict[tuple[int, ...], list[str]] = {}
        for name, stages in stages_of_parameters(context.owned).items():
            by_stages.setdefault(stages, []).append(name)
        self.recorder: Recorder | None = None
        self._sets: list[SharedSet] = []
        sums = order_allreduces(context.plan, context.lanes, by_stages)
        self._parameters = parameters
        self._had: set[str] = set()  # what this rank had gradients for, sums and other ranks' zeros aside
        for one in sums:
            names = sorted(name for name in by_stages[one.stages] if name not in divided)  # these sum as they divide
            if me in one.ranks and names:
                mine = tuple(stage for stage in one.stages if me in context.plan.stages[stage].ranks)
                behind = (MESSAGES,) if one.late else ()
                own = {name: parameters[name] for name in names}
                self._sets.append(SharedSet((*behind, *mine), one.ranks, own, groups.group_on(one.ranks)))

    def begin(self) -> None:
        """Start a step: every stage of every set is still at work."""
        self._next = 0
        for shared in self._sets:
            shared.waiting = set(shared.stages)

    def stage_is_done(self, stage: int) -> None:
        """Start the sums whose turn it is when this stage has ended, or (`MESSAGES`) the last message is issued."""
        for shared in self._sets:
            shared.waiting.discard(stage)
        while self._next < len(self._sets) and not self._sets[self._next].waiting:
            self._had |= _start(self._sets[self._next])
            self._next += 1

    def finish(self) -> None:
        """Start what no REDUCE has started, wait for all sums and put them into ``.grad``."""
        for shared in self._sets[self._next :]:
            self._had |= _start(shared)
        self._next = len(self._sets)
        for shared in self._sets:
            while shared.flying:
                work, flat, gradients = shared.flying.pop(0)
                self._wait(work, shared)
                pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
                torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(pieces, gradients, strict=True)])

    def had(self) -> set[str]:
        """Return the parameters for which this rank has had gradients of its own."""
        summed = {name for shared in self._sets for name in shared.parameters}
        return self._had | {n for n, p in self._parameters.items() if p.grad is not None and n not in summed}

    def leave_alone(self, names: Iterable[str]) -> None:
        """Sum no gradients of some parameters from now on: no rank has one."""
        for shared in self._sets:
            shared.without = frozenset(shared.parameters.keys() & set(names))

    def close(self) -> None:
        """Give up the groups."""
        self._sets.clear()

    def _wait(self, work: Any, shared: SharedSet) -> None:
        action = self._groups.watch.at = Action(Kind.REDUCE, shared.stages[-1])
        start = self.recorder.mark() if self.recorder is not None else None
        with self._groups.waiting(shared.ranks):
            work.wait()
        self._groups.expects(self._device, next(rank for rank in shared.ranks if rank != self._groups.rank))
        if self.recorder is not None:
            self.recorder.note(action, "collective", start, waits=True)


def _start(shared: SharedSet) -> set[str]:
    """Launch one all-reduce a type over the set's gradients; return the names of those that were there.

    One that only other ranks have counts as zeros.

    Raises
    ------
    DoesNotMatch
        When there is a gradient that no rank had at first: a model must compute the same in every step.
    """
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    had = {name for name, parameter in shared.parameters.items() if parameter.grad is not None}
    if had & shared.without:
        raise DoesNotMatch(
            f"{min(had & shared.without)} has a gradient, and no rank had one for it at first; let the model compute "
            "the same in every step, or freeze the parameter"
        )
    for name, parameter in shared.parameters.items():
        if name not in shared.without:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            by_type.setdefault(parameter.dtype, []).append(own_part(parameter.grad))
    for gradients in by_type.values():
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        shared.flying.append((shared.group.allreduce([flat]), flat, gradients))
    return had
