"""The two halves of a linear layer by formula, for speed: most weights of most models are such layers.

The same products as autograd's own, in the same layout, so the same numbers. Leaves out weights that are
views of a parameter: those take the general way of `split`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(slots=True)
class LinearHalf:
    """The weight half of one linear call: its input, the gradient of its output, its parameters."""

    inputs: torch.Tensor
    gradient: torch.Tensor
    weight: nn.Parameter
    bias: nn.Parameter | None

    def run(self) -> None:
        """Compute and accumulate."""
        with torch.no_grad():
            rows = self.gradient.reshape(-1, self.gradient.shape[-1])
            _accumulate(self.weight, rows.t().mm(self.inputs.reshape(-1, self.inputs.shape[-1])))
            if self.bias is not None:
                _accumulate(self.bias, rows.sum(0))


class SplitLinear(torch.autograd.Function):
    """A linear call whose backward gives its input's gradient and queues the rest."""

    @staticmethod
    def forward(ctx: Any, call: Any, inputs: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        """Compute the layer; `weights` are its weight and, if it has one, its bias."""
        ctx.save_for_backward(inputs, weights[0])
        ctx.call = call
        return torch.nn.functional.linear(inputs, *weights)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the gradient of the input alone."""
        inputs, weight = ctx.saved_tensors
        gradient = gradients[0].matmul(weight) if ctx.needs_input_grad[1] else None
        own = ctx.call.weights
        ctx.call.queue.waiting.append(
            LinearHalf(inputs.detach(), gradients[0], own[0], own[1] if len(own) > 1 else None)
        )
        return (None, gradient, *(None for _ in range(ctx.call.num_tensors - 1)))


def _accumulate(parameter: nn.Parameter, gradient: torch.Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad.add_(gradient)
