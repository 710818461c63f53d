"""Stages that torch's `fully_shard` divides: what they sum, and when.

Parameters are gathered by torch's own hooks, unit by unit, in each F and B under ZeRO-3, once a step under ZeRO-2.
Gradients are summed as the plan says: behind each micro-batch's backward (where it is split behind its W, each unit's
behind the last half of that), or once a step at REDUCE; until then they stay whole on each rank. Shard groups sum what
each of them has once a step (`shard_group_sums`), as hybrid sharding does. What torch's
`pipelining` does with such stages, this does with the same private calls, which
`tests/executor/test_executor_parallelize.py` holds. Leaves out who is divided.
"""

from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from costmodel.capture.split_calls import WeightHalf, run_in_turn
from executor.stages.shard_group_sums import ShardGroupSums
from planner.plan import MICROBATCH, PlanStage


class ShardedStage:
    """The divided modules of one stage; none where nothing is.

    Parameters
    ----------
    view : torch.nn.Module
    planned : PlanStage
        ZeRO-2 keeps gathered parameters between forward and backward, ZeRO-3 does not.
    among : ShardGroupSums
        What shard groups sum.
    splits : bool
        Whether backwards are split.
    """

    def __init__(self, view: nn.Module, planned: PlanStage, among: ShardGroupSums, *, splits: bool) -> None:
        self._among = among
        self._modules = [module for module in view.modules() if isinstance(module, FSDPModule)]
        self._gathers_again, self._done = planned.config.zero > 2, True
        self._each = planned.reduce == MICROBATCH
        self._in_backward = self._each and not splits
        for module in self._modules:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
            module.set_reshard_after_forward(self._gathers_again, recurse=False)
        # torch gathers ahead what ran before in any forward, which may be another micro-batch's: one too many then
        for unit, ahead in pairwise([*reversed(self._modules), *self._modules[:1]]):
            unit.set_modules_to_backward_prefetch([ahead])
        if view in self._modules:  # its backward begins first
            self._modules[0].set_modules_to_backward_prefetch([self._modules[-1]])

    def begin(self) -> None:
        """Start a step: gradients gather."""
        self._done = False
        self._set(last=False)

    def run_halves(self, halves: deque[WeightHalf]) -> None:
        """Run the weight halves of a backward, each let go then, and sum what they complete if that is due."""
        if not self._each:
            run_in_turn(halves)
            return
        groups = self._groups
        unit_of = {id(p._unsharded_param): i for i, group in enumerate(groups) for p in group.fsdp_params}
        found = [{unit_of[id(weight)] for weight in half.weights if id(weight) in unit_of} for half in halves]
        left = Counter(unit for units in found for unit in units)
        for units in found:
            halves.popleft().run()
            left.subtract(units)
            for unit in units:
                if not left[unit]:
                    self._sum([groups[unit]])
        self._sum(groups)

    def reduce(self) -> None:
        """Sum what the step's gradients are still to be summed of, and let go of gathered parameters, once."""
        if self._done:
            return
        self._done = True
        self._set(last=True)
        self._sum(self._groups)
        for state in map(_state, self._modules):
            if state._is_root:
                state._root_post_backward_final_callback()
        for group in self._groups:
            self._among.start([p.sharded_param for p in group.fsdp_params])

    def finish(self) -> None:
        """Wait for what shard groups sum."""
        self._among.finish()

    def rest(self) -> None:
        """Let go of parameters that a forward without a backward has gathered: others may change before the next."""
        for module in self._modules:
            module.reshard()

    @property
    def _groups(self) -> list[Any]:
        return [group for module in self._modules for group in _groups(_state(module))]

    def _sum(self, groups: Sequence[Any]) -> None:
        for group in groups:
            _fill_up(group)
            before, group.reduce_grads = group.reduce_grads, True
            group.post_backward()
            group.reduce_grads = before

    def _set(self, *, last: bool) -> None:
        for module in self._modules:
            module.set_is_last_backward(last)
            module.set_requires_gradient_sync(last or self._in_backward, recurse=False)
            module.set_reshard_after_backward(last or self._gathers_again, recurse=False)


def _fill_up(group: Any) -> None:
    """Give zeros to parameters whose gradient was summed with an earlier micro-batch's, where others have some."""
    lacks = [
        p._unsharded_param
        for p in group.fsdp_params
        if hasattr(p, "_unsharded_param") and p.unsharded_accumulated_grad is None and p._unsharded_param.grad is None
    ]
    if len(lacks) < len(group.fsdp_params):
        for parameter in lacks:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None


def gathered(stage: nn.Module) -> set[int]:
    """Return the ids of the parameters of a stage that torch gathers where they are used."""
    modules = (module for module in stage.modules() if isinstance(module, FSDPModule))
    return {id(p.sharded_param) for module in modules for group in _groups(_state(module)) for p in group.fsdp_params}


def _state(module: FSDPModule) -> Any:
    return module._get_fsdp_state()


def _groups(state: Any) -> list[Any]:
    """Return a state's groups of parameters: one before torch 2.12, perhaps none."""
    found = getattr(state, "_fsdp_param_groups", None)
    if found is None:
        found = [state._fsdp_param_group] if state._fsdp_param_group else []
    return list(found)
