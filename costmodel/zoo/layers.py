"""Layers that several models of the zoo are made of: attention, pre-norm transformer layers, image patches.

Leaves out dropout, so that every run and every split of a model gives the same loss.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head attention of (batch, sequence, hidden), to itself or to another sequence."""

    def __init__(self, hidden: int, num_heads: int, causal: bool = False, source_hidden: int = 0) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(source_hidden or hidden, hidden)
        self.value = nn.Linear(source_hidden or hidden, hidden)
        self.project = nn.Linear(hidden, hidden)

    def forward(
        self, x: torch.Tensor, source: torch.Tensor | None = None, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape; `bias` is added to the scores."""
        source = x if source is None else source
        q, k, v = self._heads(self.query(x)), self._heads(self.key(source)), self._heads(self.value(source))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=self.causal)
        out: torch.Tensor = self.project(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, -1).transpose(1, 2)


class FeedForward(nn.Sequential):
    """Two linear layers with GELU between."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__(nn.Linear(hidden, ffn), nn.GELU(), nn.Linear(ffn, hidden))


class Layer(nn.Module):
    """One pre-norm transformer layer on (batch, sequence, hidden)."""

    def __init__(self, hidden: int, num_heads: int, ffn: int, causal: bool = False) -> None:
        super().__init__()
        self.norm_attention, self.attention = nn.LayerNorm(hidden), Attention(hidden, num_heads, causal)
        self.norm_ffn, self.ffn = nn.LayerNorm(hidden), FeedForward(hidden, ffn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape."""
        x = x + self.attention(self.norm_attention(x))
        out: torch.Tensor = x + self.ffn(self.norm_ffn(x))
        return out


class FusedLayer(nn.Module):
    """A pre-norm transformer layer whose query, key and value are one matrix product."""

    def __init__(self, hidden: int, num_heads: int, ffn: int, causal: bool = False) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.norm_attention = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.project = nn.Linear(hidden, hidden)
        self.norm_ffn = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, ffn)
        self.down = nn.Linear(ffn, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape."""
        batch, sequence, hidden = x.shape
        heads = self.qkv(self.norm_attention(x)).view(batch, sequence, 3, self.num_heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, sequence, hidden))
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.norm_ffn(x))))
        return out


class VisionTower(nn.Module):
    """Images (batch, 3, side, side) to patches (batch, patches, hidden) through transformer layers."""

    def __init__(self, side: int, patch: int, hidden: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, stride=patch)
        self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2, hidden) * 0.02)
        self.layers = nn.Sequential(*(Layer(hidden, num_heads, 4 * hidden) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images to normalised patch features."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        out: torch.Tensor = self.norm(self.layers(x))
        return out
