"""Small models for training loops, with their losses and batches."""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH = 32, 16, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Tower(nn.Module):
    """Residual blocks on vectors."""

    def __init__(self, num_blocks: int = 4, block: type[nn.Module] = Block) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(block() for _ in range(num_blocks)), nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def vectors(num_steps: int, batch: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs of a tower and targets, one row a step; the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(batch, WIDTH, generator=generator), torch.randn(batch, 4, generator=generator))
        for _ in range(num_steps)
    ]


mse = F.mse_loss
