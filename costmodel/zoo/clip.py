"""A two-tower model of images and texts, CLIP ViT-L/14's shape by default, trained to tell true pairs.

The towers meet only in the last product. The loss looks at each pair alone (does this text belong to this
image?), so that it separates over micro-batches; CLIP's own contrastive loss compares every image with
every text of the batch, and does not.
"""

import torch
from torch import nn
from torch.nn import functional as F

from costmodel.zoo.layers import Layer, VisionTower


class TextTower(nn.Module):
    """Tokens (batch, sequence) through causal layers; the last position's features."""

    def __init__(self, vocabulary: int, sequence: int, hidden: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Parameter(torch.randn(1, sequence, hidden) * 0.02)
        self.layers = nn.Sequential(*(Layer(hidden, num_heads, 4 * hidden, causal=True) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids to (batch, hidden)."""
        out: torch.Tensor = self.norm(self.layers(self.tokens(tokens) + self.positions))[:, -1]
        return out


class TwoTowers(nn.Module):
    """Images and texts to one logit a pair."""

    def __init__(self, vision: VisionTower, text: TextTower, vision_hidden: int, text_hidden: int) -> None:
        super().__init__()
        self.vision, self.text = vision, text
        self.project_image = nn.Linear(vision_hidden, text_hidden, bias=False)
        self.project_text = nn.Linear(text_hidden, text_hidden, bias=False)
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Map (batch, 3, side, side) and (batch, sequence) to (batch,) logits."""
        image = self.project_image(self.vision(images).mean(dim=1))
        text = self.project_text(self.text(tokens))
        return self.scale * F.cosine_similarity(image, text, dim=-1)


Example = tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], torch.Tensor, nn.Module]


def build(
    batch: int = 8,
    side: int = 224,
    patch: int = 14,
    vision: tuple[int, int, int] = (1024, 16, 24),
    text: tuple[int, int, int] = (768, 12, 12),
    sequence: int = 77,
    vocabulary: int = 49408,
) -> Example:
    """Return the model, images and tokens, which pairs are true, and the binary cross-entropy.

    `vision` and `text` are (hidden, heads, layers) of the towers.
    """
    torch.manual_seed(0)
    towers = VisionTower(side, patch, *vision), TextTower(vocabulary, sequence, *text)
    model = TwoTowers(*towers, vision[0], text[0])
    inputs = torch.randn(batch, 3, side, side), torch.randint(vocabulary, (batch, sequence))
    return model, inputs, torch.randint(2, (batch,)).float(), nn.BCEWithLogitsLoss()


def build_small(batch: int = 8) -> Example:
    """Vision: four layers, hidden 128; text: three layers, hidden 96."""
    return build(batch, 32, 4, (128, 4, 4), (96, 4, 3), sequence=32, vocabulary=512)
