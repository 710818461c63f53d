"""The optimizer steps of a plan that has OPT: one optimizer a stage, over what that stage owns.

Leaves out learning-rate schedules and clipping: they are the user's own.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
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


def planned_optimizer(plan: Plan) -> MakeOptimizer:
    """Return what makes the optimizer that the plan was made with.

    Raises
    ------
    DoesNotMatch
        When the plan names none that the executor has.
    """
    options: Any = plan.provenance.get("options", {})
    name = options.get("optimizer") if isinstance(options, Mapping) else None
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise DoesNotMatch(f"the plan's optimizer is {name!r}; the executor has {', '.join(OPTIMIZERS)}: give your own")
    return OPTIMIZERS[name]


def stage_optimizers(
    make: MakeOptimizer, owned: Mapping[int, Iterable[str]], parameters: Mapping[str, nn.Parameter]
) -> dict[int, torch.optim.Optimizer]:
    """Return one optimizer for each stage of a rank; what two of them share is stepped by the first."""
    taken: set[str] = set()
    made = {}
    for stage, names in sorted(owned.items()):
        mine = [name for name in names if name not in taken]
        taken.update(mine)
        if mine:
            made[stage] = make([parameters[name] for name in mine])
    return made
