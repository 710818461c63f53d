"""Sums of gradients over ranks: replicas of a stage, and parameters that several stages share.

Parameters are put into sets by the stages that own them; a set whose stages lie on several ranks is
summed over all of these in one all-reduce. It starts at the last REDUCE of those stages on each rank and
is waited for at the end of the step, so that a rank never blocks here while others need its backwards. All
copies start as the lowest rank's.
Leaves out sharding.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from executor.watch import Watch
from simulator.actions import Action, Kind


@dataclass(slots=True)
class SharedSet:
    """Parameters owned by the same stages, and the ranks these run on."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    parameters: tuple[nn.Parameter, ...]
    group: Any = None
    waiting: set[int] = field(default_factory=set)
    flying: list[tuple[Any, torch.Tensor, list[torch.Tensor]]] = field(default_factory=list)


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
    owned : sequence of iterables of str
        Names of the trainable parameters that each stage reads, all stages of the plan.
    ranks : sequence of sequences of int
        Ranks of each stage.
    parameters : mapping
        Parameters by name.
    device : torch.device
    watch : Watch
        Told what this rank waits for.
    """

    def __init__(
        self,
        owned: Sequence[Iterable[str]],
        ranks: Sequence[Sequence[int]],
        parameters: Mapping[str, nn.Parameter],
        device: torch.device,
        watch: Watch,
    ) -> None:
        self._watch = watch
        me = watch.rank
        by_stages: dict[tuple[int, ...], list[str]] = {}
        for name, stages in stages_of_parameters(owned).items():
            by_stages.setdefault(stages, []).append(name)
        self.waits: list[tuple[Action, int, int]] = []
        self._sets: list[SharedSet] = []
        for stages, names in sorted(by_stages.items()):
            members = tuple(sorted({rank for stage in stages for rank in ranks[stage]}))
            if len(members) == 1:
                continue
            group = dist.new_group(list(members))  # collective: every rank makes every group, in this order
            if me in members:
                dist.all_reduce(torch.zeros(1, device=device), group=group)
                mine = tuple(stage for stage in stages if me in ranks[stage])
                shared = SharedSet(mine, members, tuple(parameters[n] for n in sorted(names)), group)
                for parameter in shared.parameters:  # a user's seed may differ from rank to rank
                    dist.broadcast(parameter.detach(), members[0], group=group)
                self._sets.append(shared)

    def begin(self) -> None:
        """Start a step: every stage of every set is still at work."""
        self.waits.clear()
        for shared in self._sets:
            shared.waiting = set(shared.stages)

    def stage_is_done(self, stage: int) -> None:
        """Start the sums of the sets whose last stage on this rank this is."""
        for shared in self._sets:
            if stage in shared.waiting:
                shared.waiting.discard(stage)
                if not shared.waiting:
                    _start(shared)

    def finish(self) -> None:
        """Start what no REDUCE has started, wait for all sums and put them into ``.grad``."""
        for shared in self._sets:
            if shared.waiting:
                shared.waiting.clear()
                _start(shared)
        for shared in self._sets:
            while shared.flying:
                work, flat, gradients = shared.flying.pop(0)
                self._wait(work, shared)
                pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
                torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(pieces, gradients, strict=True)])

    def close(self) -> None:
        """Give up the groups."""
        self._sets.clear()

    def _wait(self, work: Any, shared: SharedSet) -> None:
        peer = next(rank for rank in shared.ranks if rank != self._watch.rank)
        action = self._watch.at = Action(Kind.REDUCE, shared.stages[-1])
        start = time.perf_counter_ns()
        self._watch.waits_for(peer)
        try:
            work.wait()
        except RuntimeError as error:
            raise self._watch.lost(peer, str(error).strip().split("\n")[0]) from None
        self._watch.works()
        self.waits.append((action, start, time.perf_counter_ns()))


def _start(shared: SharedSet) -> None:
    """Launch one all-reduce a type over the set's gradients; a parameter without one counts as zeros."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in shared.parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        by_type.setdefault(parameter.dtype, []).append(parameter.grad)
    for gradients in by_type.values():
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        shared.flying.append((dist.all_reduce(flat, group=shared.group, async_op=True), flat, gradients))
