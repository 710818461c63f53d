"""A model of six alike layers between two others, small enough that a step takes nothing, and its batches."""

import torch
from torch import Tensor, nn

BATCH, WIDTH = 8, 16


class Layer(nn.Module):
    """A linear layer behind which values are bent."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, values: Tensor) -> Tensor:
        """Return the values of the next layer."""
        return torch.tanh(self.linear(values))


class Tower(nn.Module):
    """An entry, six layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 2)
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(6))

    def forward(self, values: Tensor) -> Tensor:
        """Return what is learned."""
        values = self.entry(values)
        for layer in self.layers:
            values = layer(values)
        output: Tensor = self.head(values)
        return output


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error."""
    return nn.functional.mse_loss(output, targets)


def batch_of(step: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.rand(size, 4, generator=generator)
    return inputs, torch.stack([inputs.sum(1), inputs.prod(1)], 1)


def build(batch: int = BATCH) -> tuple[nn.Module, tuple[Tensor], Tensor, object]:
    """Return the model, its inputs, targets, and the loss."""
    torch.manual_seed(0)
    inputs, targets = batch_of(0, batch)
    return Tower(), (inputs,), targets, loss_of
