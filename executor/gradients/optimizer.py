"""The optimizer steps of a plan that has OPT: the user's own optimizer, over what a rank steps.

A rank has one optimizer, so that schedules of the learning rate and saved states are torch's own, and it steps once a
step, at the rank's first OPT: one that counts its steps counts as in one process. ZeRO-1 divides a stage's parameters,
whole ones, among its replicas; each steps its share and hands it to the others. Under ZeRO-2 and 3 a rank's parameters
are its parts, stepped like any. Leaves out the scaling of losses that float16 would need.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from costmodel.errors import DoesNotMatch, UsageError
from executor.context import RankContext
from planner.plan import Plan

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-4),
}
"""By the names that a plan uses, for the command, which times steps; a training job brings its own."""


def timing_optimizer(plan: Plan) -> MakeOptimizer | None:
    """Return what makes the optimizer that a plan was priced with; None for a plan without OPT.

    Raises
    ------
    DoesNotMatch
        When the plan names none that the executor has.
    """
    if not has_opt(plan):
        return None
    options: Any = plan.provenance.get("options", {})  # where version 1 has it
    name = plan.training.optimizer or (options.get("optimizer") if isinstance(options, Mapping) else None)
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise DoesNotMatch(f"the plan's optimizer is {name!r}; the executor times {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


def has_opt(plan: Plan) -> bool:
    """Whether the plan steps an optimizer."""
    return any(text.endswith("OPT") for order in plan.orders for text in order)


def check_optimizer(plan: Plan, make: MakeOptimizer | None) -> None:
    """Refuse a plan with OPT and no optimizer, and the other way round.

    Raises
    ------
    UsageError
    """
    if has_opt(plan) and make is None:
        raise UsageError(
            f"the plan steps an optimizer (OPT, priced as {plan.training.optimizer or 'unnamed'}) and none is given: "
            "pass optimizer=lambda parameters: ... to Pipeline, or plan with --optimizer none and step your own"
        )
    if make is not None and not has_opt(plan):
        raise UsageError(
            "an optimizer is given and the plan has no OPT: step your own over pipe.parameters(), or plan with "
            "--optimizer"
        )


@dataclass(frozen=True, slots=True)
class Share:
    """What one stage's OPT does on a rank: the parameters that it steps, and those that replicas hand over."""

    mine: tuple[nn.Parameter, ...]
    dealt: Mapping[int, Sequence[nn.Parameter]]
    group: Any


class RankOptimizer:
    """The user's optimizer on one rank, and the steps of its stages.

    Parameters
    ----------
    context : RankContext
    make : callable
        Parameters that this rank steps -> their optimizer.
    parameters : mapping
        This rank's, by name.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer

    Raises
    ------
    UsageError
        When the optimizer does not hold just the parameters it was given.
    """

    def __init__(self, context: RankContext, make: MakeOptimizer, parameters: Mapping[str, nn.Parameter]) -> None:
        self._groups = context.groups
        self._shares = _shares(context, parameters)
        mine = [parameter for share in self._shares.values() for parameter in share.mine]
        # A rank that steps nothing has an optimizer too, so that the program's schedules run everywhere alike.
        self.optimizer = make(mine or [nn.Parameter(torch.empty(0, device=context.device))])
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise UsageError(f"optimizer= made a {type(self.optimizer).__name__}; it must make a torch Optimizer")
        _check_closure(self.optimizer, "a plan runs each batch once")
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if mine and held != {id(p) for p in mine}:
            raise UsageError(
                f"optimizer= made an optimizer over {len(held)} parameters and was given {len(mine)}: it must hold "
                "each of them and no other; freeze parameters before the pipeline is made"
            )
        _part_groups(self.optimizer)
        self._stepped = False

    def begin(self) -> None:
        """Start a step of the plan: the optimizer has not stepped in it."""
        self._stepped = False

    def step(self, stage: int) -> None:
        """Step the optimizer at the first OPT, and hand a stage's shares round among its replicas.

        Behind an OPT of a rank stand none but OPTs, so all gradients are there by then.
        """
        if not self._stepped and any(share.mine for share in self._shares.values()):
            self.optimizer.step()
        self._stepped = True
        share = self._shares[stage]
        for owner, parameters in share.dealt.items():
            with self._groups.waiting(share.dealt):
                for parameter in parameters:
                    value = parameter.detach()
                    whole = value.contiguous()  # gloo fills a copy of what has gaps
                    share.group.broadcast(whole, list(share.dealt).index(owner)).wait()
                    if whole is not value:
                        value.copy_(whole)

    def close(self) -> None:
        """Give up the groups."""
        self._shares.clear()


def _check_closure(optimizer: torch.optim.Optimizer, reason: str) -> None:
    needs = inspect.signature(type(optimizer).step).parameters.values()
    if [one for one in needs if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD][1:]:
        raise UsageError(
            f"{type(optimizer).__name__}.step needs a closure that computes the loss again: {reason}; take an "
            "optimizer that steps along gradients that are there"
        )


def _part_groups(optimizer: torch.optim.Optimizer) -> None:
    """Put divided parameters into groups of their own: kernels that step many at once take no mixture."""
    for group in tuple(optimizer.param_groups):
        divided = [p for p in group["params"] if isinstance(p, DTensor)]
        whole = [p for p in group["params"] if not isinstance(p, DTensor)]
        if divided and whole:
            group["params"] = whole
            optimizer.add_param_group({**group, "params": divided})


def _shares(context: RankContext, parameters: Mapping[str, nn.Parameter]) -> dict[int, Share]:
    """Return what each stage of a rank steps; what two of its stages share is stepped by the first, tied ones alike."""
    taken: set[str] = set()
    made = {}
    for stage, names in enumerate(context.owned):
        planned = context.plan.stages[stage]
        if context.rank not in planned.ranks or not planned.cost.backward:
            continue
        mine = [name for name in names if name not in taken]
        taken.update(mine)
        elsewhere = {name for other, row in enumerate(context.owned) if other != stage for name in row}
        divides = planned.config.zero == 1 and len(planned.ranks) > 1
        sharers = context.lanes.sharers(context.plan, stage, context.rank)
        divided = [name for name in mine if name not in elsewhere] if divides else []
        dealt = _even_shares([parameters[name] for name in divided], sharers)
        alone = [parameters[name] for name in mine if name not in divided]
        group = context.groups.group_on(sharers) if dealt else None
        made[stage] = Share((*alone, *dealt.get(context.rank, ())), dealt, group)
    return made


def _even_shares(parameters: Sequence[nn.Parameter], ranks: tuple[int, ...]) -> dict[int, list[nn.Parameter]]:
    """Deal parameters to ranks, the largest first to whoever has least."""
    shares: dict[int, list[nn.Parameter]] = {rank: [] for rank in ranks} if parameters else {}
    sizes = dict.fromkeys(shares, 0)
    for parameter in sorted(parameters, key=lambda p: -p.numel()):
        least = min(sizes, key=lambda rank: (sizes[rank], rank))
        shares[least].append(parameter)
        sizes[least] += parameter.numel()
    return shares


class SteppedOptimizers:
    """The optimizers of a program's own that step some parameters, seen as they do.

    Where these are `parts` of a model, one that searches along all parameters together is refused.

    Attributes
    ----------
    looks : bool
        Until they were taken.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, parts: bool) -> None:
        self._ids, self._parts = {id(parameter) for parameter in parameters}, parts
        self._found: dict[int, torch.optim.Optimizer] = {}
        self.looks = True
        self._hook = register_optimizer_step_pre_hook(self._note)

    def _note(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        if any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"]):
            self._found[id(optimizer)] = optimizer
            if self._parts:
                _check_closure(optimizer, "it searches along all parameters together, and a rank has its stages' alone")

    def take(self) -> list[torch.optim.Optimizer]:
        """Return those that have stepped, and look no more."""
        self._hook.remove()
        self.looks = False
        return list(self._found.values())
