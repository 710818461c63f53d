"""What a program asks of its pipeline beside plan, model and loss, the same on every rank; what goes with which plan.

Leaves out the group and the device, in which ranks differ, and whether the model is the plan's (`matching`).
"""

from dataclasses import dataclass, fields
from typing import Any

import torch

from costmodel.capture.capture import Capture
from costmodel.errors import UsageError
from executor.gradients.optimizer import MakeOptimizer, check_optimizer
from executor.model.meta_init import Values
from executor.plan_match.devices import choose_device, of_this_process
from executor.plan_match.matching import check_device, check_hosts, check_target, check_world, place_in
from executor.plan_match.precision import planned_dtype
from executor.stages.user_parallelize import Parallelize
from planner.plan import Plan

LEAST_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a pipeline, as `executor.Pipeline` documents them."""

    optimizer: MakeOptimizer | None = None
    max_norm: float | None = None
    seed: int = 0
    timeout_s: float = LEAST_TIMEOUT_S
    emulate: bool = False
    values: Values | None = None
    parallelize: Parallelize | None = None
    gradient_norm: bool = False
    skip_nonfinite: bool = False

    @property
    def takes_norm(self) -> bool:
        """Whether the norm of each step's gradients is taken."""
        return self.gradient_norm or self.skip_nonfinite or self.max_norm is not None

    def told(self) -> dict[str, Any]:
        """Return what ranks tell each other of them."""
        found = {one.name: getattr(self, one.name) for one in fields(self)} | {"gradient_norm": self.takes_norm}
        return found | {name: found[name] is not None for name in ("optimizer", "values", "parallelize")}


def check_start(
    plan: Plan, model: object, options: RunOptions, device: torch.device | None, group: Any
) -> torch.device:
    """Refuse what no model is needed to see, and return this rank's device.

    Raises
    ------
    UsageError
        When options do not go with the plan, or with each other.
    DoesNotMatch
        When the plan is for other ranks, hosts or devices, or for what the executor does not run.
    """
    divided, of_group = options.parallelize is not None, group is not None
    check_world(plan, group)
    rank, _ = place_in(group)
    check_target(plan, divides=divided)
    divides = divided or any(stage.config.divides for stage in plan.stages)
    if divides and (of_group or isinstance(model, Capture)):
        what = "parallelize=" if divided else "a plan that divides parameters (tensor, ZeRO-2, 3)"
        raise UsageError(f"{what} takes the whole world and a model of its own: neither group= nor a capture")
    check_optimizer(plan, options.optimizer)
    if options.max_norm is not None and options.optimizer is None:
        raise UsageError("max_norm= clips before the plan's OPT; without one call clip_grad_norm_ before you step")
    planned_dtype(plan)
    if not options.emulate and not of_group:  # emulated it only imitates the plan's machines
        check_hosts(plan, rank)
    device = of_this_process(device or choose_device(plan.cluster.device_of(rank).type))
    check_device(plan, rank, device)
    return device
