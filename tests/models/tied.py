"""A line of layers whose first and last share their weight, and two ways of failing."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Model = tuple[nn.Module, tuple[Tensor], Callable[[Tensor], Any]]


def build(batch: int = 4) -> Model:
    torch.manual_seed(5)
    model = nn.Sequential(*(nn.Linear(48, 48) for _ in range(6)))
    model[5].weight = model[0].weight
    return model, (torch.randn(batch, 48),), lambda output: output.square().mean()


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("inside the model")


def forward_fails(batch: int = 4) -> Model:
    return Failing(), (torch.randn(batch, 4),), lambda output: output.mean()


def loss_fails(batch: int = 4) -> Model:
    def loss(output: Tensor) -> Any:
        raise KeyError("no such key")

    return nn.Linear(4, 4), (torch.randn(batch, 4),), loss
