"""Time of one optimizer step over all trainable parameters: Adam, as most training jobs use it.

The learning rate is 0, so that no parameter changes. Leaves out other optimizers and sharded states.
"""

from collections.abc import Sequence
from statistics import median

import torch
from torch import nn

from costmodel.capture.clock import Clock

STEPS = 5
LEAST_SHARE = 1024
"""Parameters are not made smaller than this share of theirs: then the memory is not what is missing."""


def time_optimizer(module: nn.Module, clock: Clock) -> int:
    """Return the median ns of one Adam step; 0 for a model with nothing to train.

    Where its states do not fit the memory, made-up parameters of a share of the size represent the module's.
    """
    parameters = _trained(module)
    if not parameters:
        return 0
    share = 1
    while True:
        try:
            measured = _time(parameters, clock)
        except torch.OutOfMemoryError:
            if share > LEAST_SHARE:
                raise
            share *= 4
        else:
            return round(measured * share)
        finally:
            module.zero_grad(set_to_none=True)
        parameters = [nn.Parameter(p.new_zeros(max(1, p.numel() // share))) for p in _trained(module)]


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _time(parameters: Sequence[nn.Parameter], clock: Clock) -> float:
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.Adam(parameters, lr=0.0)
    spans = []
    for _ in range(STEPS + 1):  # the first one allocates the states
        clock.wait()
        start = clock.mark()
        optimizer.step()
        end = clock.mark()
        clock.wait()
        spans.append(clock.span_ns(start, end))
    return median(spans[1:])
