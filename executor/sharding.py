"""Stages that torch's `fully_shard` divides: one sum of gradients a step, when the plan says REDUCE.

Until then gradients gather whole on each rank, and nothing is sent for them; parameters are gathered by torch's own
hooks, in each F and B under ZeRO-3, once a step under ZeRO-2. What torch's `pipelining` does with such stages, this
does with the same private calls, which `tests/test_executor_parallelize.py` holds. Leaves out who is divided.
"""

from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule


class ShardedStage:
    """The divided modules of one stage; none where nothing is.

    Parameters
    ----------
    view : torch.nn.Module
    zero : int
        2 keeps gathered parameters between forward and backward, 3 does not.
    """

    def __init__(self, view: nn.Module, zero: int) -> None:
        self._modules = [module for module in view.modules() if isinstance(module, FSDPModule)]
        self._zero, self._done = zero, True
        for module in self._modules:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
            module.set_reshard_after_forward(zero > 2, recurse=False)

    def begin(self) -> None:
        """Start a step: gradients gather."""
        self._done = False
        self._set(last=False)

    def reduce(self) -> None:
        """Sum the step's gradients and divide them, once."""
        if self._done:
            return
        self._done = True
        self._set(last=True)
        states = [_state(module) for module in self._modules]
        for state in states:
            for group in _groups(state):
                group.post_backward()
        for state in states:
            if state._is_root:
                state._root_post_backward_final_callback()

    def rest(self) -> None:
        """Let go of parameters that a forward without a backward has gathered: others may change before the next."""
        for module in self._modules:
            module.reshard()

    def _set(self, *, last: bool) -> None:
        for module in self._modules:
            module.set_is_last_backward(last)
            module.set_requires_gradient_sync(last, recurse=False)
            module.set_reshard_after_backward(last or self._zero > 2, recurse=False)


def _state(module: FSDPModule) -> Any:
    return module._get_fsdp_state()


def _groups(state: Any) -> list[Any]:
    """Return a state's groups of parameters: one before torch 2.12, perhaps none."""
    found = getattr(state, "_fsdp_param_groups", None)
    if found is None:
        found = [state._fsdp_param_group] if state._fsdp_param_group else []
    return list(found)
