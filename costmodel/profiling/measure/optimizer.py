"""Time of one optimizer step over all trainable parameters: Adam, as most training jobs use it.

The learning rate is 0, so that no parameter changes. Leaves out other optimizers and sharded states.
"""

from statistics import median

import torch
from torch import nn

from costmodel.capture.clock import Clock

STEPS = 5


def time_optimizer(module: nn.Module, clock: Clock) -> int:
    """Return the median ns of one Adam step; 0 for a model with nothing to train."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        return 0
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
    module.zero_grad(set_to_none=True)
    return round(median(spans[1:]))
