"""A vision transformer: patches, pre-norm layers, mean pooling, a classifier. ViT-L/16's shape by default.

Leaves out the class token (its pooling is the mean) and dropout.
"""

import torch
from torch import nn

from costmodel.zoo.layers import VisionTower


class VisionTransformer(nn.Module):
    """Images (batch, 3, side, side) to logits (batch, classes)."""

    def __init__(self, side: int, patch: int, hidden: int, num_heads: int, num_layers: int, num_classes: int) -> None:
        super().__init__()
        self.tower = VisionTower(side, patch, hidden, num_heads, num_layers)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images to logits."""
        logits: torch.Tensor = self.head(self.tower(images).mean(dim=1))
        return logits


Example = tuple[nn.Module, tuple[torch.Tensor], torch.Tensor, nn.Module]


def build(
    batch: int = 8, side: int = 224, patch: int = 16, hidden: int = 1024, num_heads: int = 16, num_layers: int = 24
) -> Example:
    """Return the model, images, class labels and cross-entropy."""
    torch.manual_seed(0)
    num_classes = 1000
    model = VisionTransformer(side, patch, hidden, num_heads, num_layers, num_classes)
    return model, (torch.randn(batch, 3, side, side),), torch.randint(num_classes, (batch,)), nn.CrossEntropyLoss()


def build_small(batch: int = 8) -> Example:
    """Four layers, hidden 128, images of 32 pixels in patches of 4."""
    return build(batch, side=32, patch=4, hidden=128, num_heads=4, num_layers=4)
