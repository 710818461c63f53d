"""A Llama-like decoder: RMS norm, rotary positions, grouped-query attention, SwiGLU; 7B's shape by default.

The rotary tables are computed once from the sequence's length: every stage does that for itself.
Leaves out caches and long-context scaling of the positions.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from costmodel.zoo.gpt import next_token_loss

Rotary = tuple[torch.Tensor, torch.Tensor]


def rotary_tables(sequence: int, head_size: int, device: torch.device, dtype: torch.dtype) -> Rotary:
    """Return cosine and sine, each (sequence, head size), computed in fp32 and given in `dtype`."""
    exponent = torch.arange(0, head_size, 2, device=device) / head_size
    angles = torch.outer(torch.arange(sequence, device=device).float(), 10000.0**-exponent)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, tables: Rotary) -> torch.Tensor:
    """Turn (batch, heads, sequence, head size) by its positions."""
    cosine, sine = tables
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-right, left], dim=-1) * sine


class GroupedAttention(nn.Module):
    """Causal attention in which groups of query heads share keys and values."""

    def __init__(self, hidden: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.head_size = hidden // num_heads
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, num_kv_heads * self.head_size, bias=False)
        self.value = nn.Linear(hidden, num_kv_heads * self.head_size, bias=False)
        self.project = nn.Linear(hidden, hidden, bias=False)
        self.grouped = num_heads != num_kv_heads

    def forward(self, x: torch.Tensor, tables: Rotary) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape."""
        split = (x.shape[0], x.shape[1], -1, self.head_size)
        q, k, v = (layer(x).view(split).transpose(1, 2) for layer in (self.query, self.key, self.value))
        q, k = rotate(q, tables), rotate(k, tables)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        out: torch.Tensor = self.project(mixed.transpose(1, 2).flatten(2))
        return out


class GatedFeedForward(nn.Module):
    """SwiGLU: one of two projections gates the other."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., hidden) to the same shape."""
        out: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class DecoderLayer(nn.Module):
    """One pre-norm layer; the feed-forward is whatever the model brings."""

    def __init__(self, hidden: int, num_heads: int, num_kv_heads: int, ffn: nn.Module) -> None:
        super().__init__()
        self.norm_attention, self.attention = nn.RMSNorm(hidden), GroupedAttention(hidden, num_heads, num_kv_heads)
        self.norm_ffn, self.ffn = nn.RMSNorm(hidden), ffn

    def forward(self, x: torch.Tensor, tables: Rotary) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape."""
        x = x + self.attention(self.norm_attention(x), tables)
        out: torch.Tensor = x + self.ffn(self.norm_ffn(x))
        return out


class Llama(nn.Module):
    """Tokens (batch, sequence) to logits (batch, sequence, vocabulary)."""

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        make_ffn: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.head_size = hidden // num_heads
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(
            DecoderLayer(hidden, num_heads, num_kv_heads, make_ffn()) for _ in range(num_layers)
        )
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids to next-token logits."""
        x = self.tokens(tokens)
        tables = rotary_tables(tokens.shape[1], self.head_size, tokens.device, x.dtype)
        for layer in self.layers:
            x = layer(x, tables)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


Example = tuple[nn.Module, tuple[torch.Tensor], torch.Tensor, object]


def build(
    batch: int = 1,
    vocabulary: int = 32000,
    hidden: int = 4096,
    ffn: int = 11008,
    num_layers: int = 32,
    num_heads: int = 32,
    num_kv_heads: int = 32,
    sequence: int = 2048,
) -> Example:
    """Return the model (Llama-2-7B's shape by default), tokens, the same as targets and the next-token loss."""
    torch.manual_seed(0)
    model = Llama(vocabulary, hidden, num_layers, num_heads, num_kv_heads, lambda: GatedFeedForward(hidden, ffn))
    tokens = torch.randint(vocabulary, (batch, sequence))
    return model, (tokens,), tokens, next_token_loss


def build_llama3(batch: int = 1, num_layers: int = 8, sequence: int = 4096) -> Example:
    """Return eight layers of Llama-3-8B's shape with its embedding and head: what one GPU trains whole."""
    return build(batch, 128256, 4096, 14336, num_layers, num_heads=32, num_kv_heads=8, sequence=sequence)


def build_llama3_small(batch: int = 4) -> Example:
    """Two layers, hidden 128, eight query heads on two key-value heads, sequence 64."""
    return build(batch, 512, 128, 448, num_layers=2, num_heads=8, num_kv_heads=2, sequence=64)


def build_small(batch: int = 4) -> Example:
    """Four layers, hidden 128, four query heads on two key-value heads, sequence 64."""
    return build(batch, 512, 128, 352, num_layers=4, num_heads=4, num_kv_heads=2, sequence=64)
