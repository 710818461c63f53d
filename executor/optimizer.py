"""The optimizer steps of a plan that has OPT: one optimizer a stage, over what that stage owns.

ZeRO-1 divides a stage's parameters, whole ones, among its replicas. Leaves out learning-rate schedules and
clipping, which are the user's own, and ZeRO-2 and 3.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from costmodel.errors import DoesNotMatch
from planner.plan import Plan

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-4),
}
"""By the names that a plan uses; the rates matter to no timing."""


def planned_optimizer(plan: Plan) -> MakeOptimizer | None:
    """Return what makes the optimizer that the plan was made with, for timing; None for a plan without OPT.

    Raises
    ------
    DoesNotMatch
        When the plan names none that the executor has.
    """
    if not has_optimizer(plan):
        return None
    options: Any = plan.provenance.get("options", {})
    name = plan.training.optimizer or options.get("optimizer")  # plans of version 1 have it in their options
    if name not in OPTIMIZERS:
        raise DoesNotMatch(f"the plan's optimizer is {name!r}; the executor has {', '.join(OPTIMIZERS)}: give your own")
    return OPTIMIZERS[name]


def has_optimizer(plan: Plan) -> bool:
    """Whether a plan has OPT."""
    return any(text.endswith("OPT") for order in plan.orders for text in order)


class StageOptimizer:
    """The optimizer step of one stage; with ZeRO-1 each replica steps its share and hands it to the others.

    Parameters
    ----------
    make : callable
    parameters : sequence of torch.nn.Parameter
        Stepped on this rank alone or, being tied to other stages, alike everywhere.
    shared : sequence of torch.nn.Parameter
        Divided among the replicas.
    ranks : tuple of int
        The replicas.
    rank : int
        This one.
    """

    def __init__(
        self,
        make: MakeOptimizer,
        parameters: Sequence[nn.Parameter],
        shared: Sequence[nn.Parameter],
        ranks: tuple[int, ...],
        rank: int,
    ) -> None:
        self._shares = _even_shares(shared, ranks)
        mine = [*parameters, *self._shares.get(rank, ())]
        self._optimizer = make(mine) if mine else None
        self.group: Any = None  # of the replicas, once they are connected

    def step(self) -> None:
        """Step, then exchange shares."""
        if self._optimizer is not None:
            self._optimizer.step()
        for owner, parameters in self._shares.items():
            for parameter in parameters:
                dist.broadcast(parameter.detach(), owner, group=self.group)


def connect_shards(plan: Plan, optimizers: Mapping[int, StageOptimizer]) -> None:
    """Make the groups of replicas that divide an optimizer; collective over all ranks of the plan."""
    if not has_optimizer(plan):
        return
    for index, stage in enumerate(plan.stages):
        if stage.config.zero and len(stage.ranks) > 1:
            group = dist.new_group(list(stage.ranks))
            if index in optimizers:
                optimizers[index].group = group


def _even_shares(parameters: Sequence[nn.Parameter], ranks: tuple[int, ...]) -> dict[int, list[nn.Parameter]]:
    """Deal parameters to ranks, the largest first to whoever has least."""
    shares: dict[int, list[nn.Parameter]] = {rank: [] for rank in ranks} if parameters else {}
    sizes = dict.fromkeys(shares, 0)
    for parameter in sorted(parameters, key=lambda p: -p.numel()):
        least = min(sizes, key=lambda rank: (sizes[rank], rank))
        shares[least].append(parameter)
        sizes[least] += parameter.numel()
    return shares


def stage_optimizers(
    plan: Plan, make: MakeOptimizer, rank: int, owned: Sequence[Sequence[str]], parameters: Mapping[str, nn.Parameter]
) -> dict[int, StageOptimizer]:
    """Return the optimizer of each stage of a rank; what two of its stages share is stepped by the first."""
    taken: set[str] = set()
    made = {}
    for stage, names in enumerate(owned):
        planned = plan.stages[stage]
        if rank not in planned.ranks:
            continue
        mine = [name for name in names if name not in taken]
        taken.update(mine)
        elsewhere = {name for other, row in enumerate(owned) if other != stage for name in row}
        divided = [n for n in mine if n not in elsewhere] if planned.config.zero and len(planned.ranks) > 1 else []
        alone = [name for name in mine if name not in divided]
        made[stage] = StageOptimizer(
            make, [parameters[n] for n in alone], [parameters[n] for n in divided], planned.ranks, rank
        )
    return made
