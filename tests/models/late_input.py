"""A model that is not in the zoo: two branches, a long skip over both, and a raw input that enters late."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.left = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True)) for _ in range(4)))
        self.right = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)))
        self.late = nn.Linear(8, width)
        self.head = nn.Linear(3 * width, 10)

    def forward(self, image: Tensor, meta: Tensor) -> Tensor:
        trunk = torch.relu(self.stem(image))
        joined = torch.cat([self.left(trunk), self.right(trunk) + trunk, self.late(meta)], dim=-1)
        return self.head(joined)


def build(batch: int = 8) -> tuple[nn.Module, tuple[Tensor, Tensor], Tensor, Callable[[Tensor, Tensor], Tensor]]:
    torch.manual_seed(3)
    inputs = (torch.randn(batch, 192), torch.randn(batch, 8))
    return Branches(192), inputs, torch.randint(10, (batch,)), nn.functional.cross_entropy
