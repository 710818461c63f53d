"""A 3-D U-Net for volumes: each level of the way down is read again on the way up, its longest skip last.

Norms are over groups of channels, so that samples do not mix. Leaves out patches that overlap.
"""

from itertools import pairwise

import torch
from torch import nn


def block(inside: int, outside: int) -> nn.Sequential:
    """Two convolutions with norm and ReLU."""
    layers: list[nn.Module] = []
    for channels in (inside, outside):
        layers += [
            nn.Conv3d(channels, outside, 3, padding=1, bias=False), nn.GroupNorm(8, outside), nn.ReLU(inplace=True)
        ]  # fmt: skip
    return nn.Sequential(*layers)


class UNet3d(nn.Module):
    """Volumes (batch, 1, side, side, side) to logits (batch, classes, side, side, side)."""

    def __init__(self, channels: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        steps = list(pairwise(channels))
        self.first = block(1, channels[0])
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool3d(2), block(a, b)) for a, b in steps)
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, stride=2) for a, b in reversed(steps))
        self.join = nn.ModuleList(block(2 * a, a) for a, _ in reversed(steps))
        self.out = nn.Conv3d(channels[0], num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map volumes to logits of each voxel."""
        levels = [self.first(x)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([levels.pop(), up(x)], dim=1))
        logits: torch.Tensor = self.out(x)
        return logits


Example = tuple[nn.Module, tuple[torch.Tensor], torch.Tensor, nn.Module]


def build(batch: int = 2, side: int = 128, channels: tuple[int, ...] = (32, 64, 128, 256, 320)) -> Example:
    """Return the model, volumes, a class of each voxel and cross-entropy."""
    torch.manual_seed(0)
    model = UNet3d(channels, num_classes=4)
    volumes = torch.randn(batch, 1, side, side, side)
    return model, (volumes,), torch.randint(4, (batch, side, side, side)), nn.CrossEntropyLoss()


def build_small(batch: int = 2) -> Example:
    """Three levels from 8 channels, volumes of 16."""
    return build(batch, side=16, channels=(8, 16, 32))
