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
from executor.groups import Company
from executor.lanes import Lanes
from executor.parallel import axes_of, own_part
from executor.recording import Recorder
from executor.starts import MESSAGES, sums_in_order
from planner.plan import Plan
from simulator.actions import Action, Kind


@dataclass(slots=True)
class Flight:
    """One all-reduce under way: its flat tensor, and by name the gradients in it."""

    work: Any
    flat: torch.Tensor
    gradients: dict[str, torch.Tensor]


@dataclass(slots=True)
class SharedSet:
    """Parameters owned by the same stages of this rank, behind `MESSAGES` where they wait for those, and all ranks.

    `without` are those that no rank has a gradient for, which the ranks agree on in the first sum: an optimizer leaves
    them alone, as it does in one process.
    """

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    parameters: dict[str, nn.Parameter]
    group: Any = None
    waiting: set[int] = field(default_factory=set)
    flying: list[Flight] = field(default_factory=list)
    without: set[str] | None = None


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
    plan : Plan
    owned : sequence of iterables of str
        Names of the trainable parameters that each stage reads, all stages of the plan.
    parameters : mapping
        Parameters by name.
    device : torch.device
    company : Company
    lanes : Lanes
    """

    def __init__(
        self,
        plan: Plan,
        owned: Sequence[Iterable[str]],
        parameters: Mapping[str, nn.Parameter],
        device: torch.device,
        company: Company,
        lanes: Lanes,
    ) -> None:
        self._watch, self._expects, self._device = company.watch, company.expects, device
        me = company.rank
        divided = {name for name, parameter in parameters.items() if "data" in axes_of(parameter)}
        by_stages: dict[tuple[int, ...], list[str]] = {}
        for name, stages in stages_of_parameters(owned).items():
            by_stages.setdefault(stages, []).append(name)
        self.recorder: Recorder | None = None
        self._sets: list[SharedSet] = []
        for one in sums_in_order(plan, lanes, by_stages):
            names = sorted(name for name in by_stages[one.stages] if name not in divided)  # these sum as they divide
            if me in one.ranks and names:
                mine = tuple(stage for stage in one.stages if me in plan.stages[stage].ranks)
                behind = (MESSAGES,) if one.late else ()
                own = {name: parameters[name] for name in names}
                self._sets.append(SharedSet((*behind, *mine), one.ranks, own, company.group_on(one.ranks)))

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
            _start(self._sets[self._next])
            self._next += 1

    def finish(self) -> None:
        """Start what no REDUCE has started, wait for all sums and put them into ``.grad``."""
        for shared in self._sets[self._next :]:
            _start(shared)
        self._next = len(self._sets)
        for shared in self._sets:
            without: set[str] = set()
            while shared.flying:
                flight = shared.flying.pop(0)
                self._wait(flight.work, shared)
                without |= _take(flight, agreeing=shared.without is None)
            if shared.without is None:
                shared.without = without
                for name in without:
                    shared.parameters[name].grad = None

    def close(self) -> None:
        """Give up the groups."""
        self._sets.clear()

    def _wait(self, work: Any, shared: SharedSet) -> None:
        peer = next(rank for rank in shared.ranks if rank != self._watch.rank)
        action = self._watch.at = Action(Kind.REDUCE, shared.stages[-1])
        start = self.recorder.mark() if self.recorder is not None else None
        self._watch.waits_for(*(rank for rank in shared.ranks if rank != self._watch.rank))
        try:
            work.wait()
        except RuntimeError as error:
            raise self._watch.lost(peer, str(error).strip().split("\n")[0]) from None
        self._watch.works()
        self._expects(self._device, peer)
        if self.recorder is not None:
            self.recorder.note(action, "collective", start, waits=True)


def _start(shared: SharedSet) -> None:
    """Launch one all-reduce a type over the set's gradients; one that only other ranks have counts as zeros.

    The first time each says behind its gradients which of them it has.

    Raises
    ------
    DoesNotMatch
        When there is a gradient that no rank had at first: a model must compute the same in every step.
    """
    by_type: dict[torch.dtype, dict[str, torch.Tensor]] = {}
    has = {name: parameter.grad is not None for name, parameter in shared.parameters.items()}
    for name, parameter in shared.parameters.items():
        if name in (shared.without or ()):
            if has[name]:
                raise DoesNotMatch(f"{name} has a gradient, and no rank had one for it before; {_WAY_OUT}")
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        by_type.setdefault(parameter.dtype, {})[name] = own_part(parameter.grad)
    for gradients in by_type.values():
        pieces = [gradient.reshape(-1) for gradient in gradients.values()]
        if shared.without is None:
            pieces.append(pieces[0].new_tensor([has[name] for name in gradients]))
        flat = torch.cat(pieces)
        shared.flying.append(Flight(shared.group.allreduce([flat]), flat, gradients))


_WAY_OUT = "let the model compute the same in every step, or freeze the parameter"


def _take(flight: Flight, *, agreeing: bool) -> set[str]:
    """Put what was summed into the gradients; return the names of those that nobody had, where that was asked."""
    names, gradients = list(flight.gradients), list(flight.gradients.values())
    sizes = [gradient.numel() for gradient in gradients]
    *pieces, had = torch.split(flight.flat, [*sizes, len(names)] if agreeing else [*sizes, 0])
    torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(pieces, gradients, strict=True)])
    return {name for name, count in zip(names, had.tolist(), strict=True) if not count} if agreeing else set()
