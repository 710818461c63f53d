"""ResNet-50: bottleneck blocks with BatchNorm. Statistics are those of a micro-batch, as in any pipeline."""

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions added to the input, which is projected where the shape changes."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        changes = stride != 1 or inside != outside
        self.project = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        if not changes:
            self.project = nn.Sequential()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, inside, h, w) to (batch, 4 width, h / stride, w / stride)."""
        out: torch.Tensor = self.relu(self.body(x) + self.project(x))
        return out


class ResNet(nn.Module):
    """Images (batch, 3, side, side) to logits."""

    def __init__(self, width: int, depths: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        blocks, inside = [], width
        for level, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(Bottleneck(inside, width << level, 2 if level and not i else 1))
                inside = 4 * (width << level)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inside, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images to logits."""
        logits: torch.Tensor = self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits


Example = tuple[nn.Module, tuple[torch.Tensor], torch.Tensor, nn.Module]


def build(batch: int = 32, side: int = 224, width: int = 64, depths: tuple[int, ...] = (3, 4, 6, 3)) -> Example:
    """Return the model, images, class labels and cross-entropy."""
    torch.manual_seed(0)
    model = ResNet(width, depths, 1000)
    return model, (torch.randn(batch, 3, side, side),), torch.randint(1000, (batch,)), nn.CrossEntropyLoss()


def build_small(batch: int = 4) -> Example:
    """Six blocks from 16 channels, images of 64 pixels."""
    return build(batch, side=64, width=16, depths=(1, 2, 2, 1))
