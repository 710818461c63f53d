"""A vision-language model: a vision tower whose features every few decoder layers attend to.

The shape of Llama-3.2-Vision and Flamingo: gated cross attention between decoder layers, so that one
tensor of the vision tower goes to many far-apart places. Leaves out several images a text.
"""

import torch
from torch import nn

from costmodel.zoo.gpt import next_token_loss
from costmodel.zoo.layers import Attention, FeedForward, Layer, VisionTower


class CrossLayer(nn.Module):
    """Attention to the image, and a feed-forward, both let in by learned gates."""

    def __init__(self, hidden: int, num_heads: int, vision_hidden: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, num_heads, source_hidden=vision_hidden)
        self.norm_ffn, self.ffn = nn.LayerNorm(hidden), FeedForward(hidden, 4 * hidden)
        self.gates = nn.Parameter(torch.full((2,), 0.5))

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Map text (batch, sequence, hidden) and patches (batch, patches, vision hidden) to text's shape."""
        gates = self.gates.tanh()
        x = x + gates[0] * self.attention(self.norm_attention(x), image)
        out: torch.Tensor = x + gates[1] * self.ffn(self.norm_ffn(x))
        return out


class VisionLanguage(nn.Module):
    """Images and tokens to next-token logits; every `period`-th decoder layer is led by a `CrossLayer`."""

    def __init__(
        self,
        vision: VisionTower,
        vision_hidden: int,
        decoder: tuple[int, int, int],
        period: int,
        sequence: int,
        vocabulary: int,
    ) -> None:
        super().__init__()
        hidden, num_heads, num_layers = decoder
        self.period = period
        self.vision = vision
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(sequence, hidden)
        self.layers = nn.ModuleList(Layer(hidden, num_heads, 4 * hidden, causal=True) for _ in range(num_layers))
        self.cross = nn.ModuleList(CrossLayer(hidden, num_heads, vision_hidden) for _ in range(num_layers // period))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Map (batch, 3, side, side) and (batch, sequence) to (batch, sequence, vocabulary)."""
        image = self.vision(images)
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for i, layer in enumerate(self.layers):
            if i % self.period == self.period - 1:
                x = self.cross[i // self.period](x, image)
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


Example = tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], torch.Tensor, object]


def build(
    batch: int = 4,
    side: int = 448,
    patch: int = 14,
    vision: tuple[int, int, int] = (1280, 16, 32),
    decoder: tuple[int, int, int] = (4096, 32, 32),
    period: int = 4,
    sequence: int = 1024,
    vocabulary: int = 128256,
) -> Example:
    """Return the model, images and tokens, the tokens as targets and the next-token loss.

    `vision` and `decoder` are (hidden, heads, layers).
    """
    torch.manual_seed(0)
    tower = VisionTower(side, patch, *vision)
    model = VisionLanguage(tower, vision[0], decoder, period, sequence, vocabulary)
    tokens = torch.randint(vocabulary, (batch, sequence))
    return model, (torch.randn(batch, 3, side, side), tokens), tokens, next_token_loss


def build_small(batch: int = 4) -> Example:
    """Vision: two layers, hidden 96; decoder: four layers, hidden 128, every second one after the image."""
    return build(batch, 32, 4, (96, 4, 2), (128, 4, 4), period=2, sequence=32, vocabulary=512)
