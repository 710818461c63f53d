"""T5: an encoder and a decoder that attends to it in every layer, relative positions, one token embedding.

The embedding is read at both ends and the position bias by every layer of its half, so both are long
edges. T5-large's shape by default. Leaves out dropout, and the bias of cross attention (T5 has none).
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from costmodel.zoo.layers import Attention

NUM_BUCKETS, FURTHEST = 32, 128


def buckets(sequence: int, both_ways: bool, device: torch.device) -> torch.Tensor:
    """Return the bucket of each pair of positions, (sequence, sequence): exact near, logarithmic far."""
    position = torch.arange(sequence, device=device)
    distance = position[:, None] - position[None, :]  # query - key
    count = NUM_BUCKETS // 2 if both_ways else NUM_BUCKETS
    offset = (distance < 0).long() * count if both_ways else 0
    distance = distance.abs() if both_ways else distance.clamp(min=0)
    exact = count // 2
    far = torch.log(distance.clamp(min=1) / exact) / math.log(FURTHEST / exact) * (count - exact)
    return torch.where(distance < exact, distance, (exact + far.long()).clamp(max=count - 1)) + offset


class RelativeBias(nn.Module):
    """Scores by relative position, (1, heads, sequence, sequence); a decoder's hide the future."""

    def __init__(self, num_heads: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.table = nn.Embedding(NUM_BUCKETS, num_heads)

    def forward(self, sequence: int, device: torch.device) -> torch.Tensor:
        """Return the bias for a sequence of that length."""
        bias: torch.Tensor = self.table(buckets(sequence, not self.causal, device)).permute(2, 0, 1).unsqueeze(0)
        if self.causal:
            future = torch.ones(sequence, sequence, dtype=torch.bool, device=device).triu(1)
            bias = bias.masked_fill(future, -1e9)
        return bias


class T5Layer(nn.Module):
    """Self attention, in a decoder cross attention, and a feed-forward; pre-norm."""

    def __init__(self, hidden: int, num_heads: int, ffn: int, decoder: bool) -> None:
        super().__init__()
        self.norm_attention, self.attention = nn.RMSNorm(hidden), Attention(hidden, num_heads)
        if decoder:
            self.norm_cross, self.cross = nn.RMSNorm(hidden), Attention(hidden, num_heads)
        self.norm_ffn = nn.RMSNorm(hidden)
        self.up, self.down = nn.Linear(hidden, ffn, bias=False), nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor, bias: torch.Tensor, encoded: torch.Tensor | None = None) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape."""
        x = x + self.attention(self.norm_attention(x), bias=bias)
        if encoded is not None:
            x = x + self.cross(self.norm_cross(x), encoded)
        out: torch.Tensor = x + self.down(F.relu(self.up(self.norm_ffn(x))))
        return out


class Stack(nn.Module):
    """Layers that share one position bias, and a norm."""

    def __init__(self, hidden: int, num_heads: int, ffn: int, num_layers: int, decoder: bool) -> None:
        super().__init__()
        self.bias = RelativeBias(num_heads, decoder)
        self.layers = nn.ModuleList(T5Layer(hidden, num_heads, ffn, decoder) for _ in range(num_layers))
        self.norm = nn.RMSNorm(hidden)

    def forward(self, x: torch.Tensor, encoded: torch.Tensor | None = None) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape."""
        bias = self.bias(x.shape[1], x.device)
        for layer in self.layers:
            x = layer(x, bias, encoded)
        out: torch.Tensor = self.norm(x)
        return out


class EncoderDecoder(nn.Module):
    """Source and target tokens to the target's next-token logits."""

    def __init__(self, vocabulary: int, hidden: int, num_heads: int, ffn: int, num_layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.encoder = Stack(hidden, num_heads, ffn, num_layers, decoder=False)
        self.decoder = Stack(hidden, num_heads, ffn, num_layers, decoder=True)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Map (batch, source length) and (batch, target length) to (batch, target length, vocabulary)."""
        encoded = self.encoder(self.tokens(source))
        logits: torch.Tensor = self.head(self.decoder(self.tokens(target), encoded))
        return logits


def next_token_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each target token given those before it."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten())


Example = tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], torch.Tensor, object]


def build(
    batch: int = 8,
    vocabulary: int = 32128,
    hidden: int = 1024,
    num_heads: int = 16,
    ffn: int = 4096,
    num_layers: int = 24,
    lengths: tuple[int, int] = (512, 512),
) -> Example:
    """Return the model, source and target tokens of these lengths, the target again and the loss."""
    torch.manual_seed(0)
    model = EncoderDecoder(vocabulary, hidden, num_heads, ffn, num_layers)
    source, target = (torch.randint(vocabulary, (batch, length)) for length in lengths)
    return model, (source, target), target, next_token_loss


def build_small(batch: int = 4) -> Example:
    """Three layers each, hidden 128, 48 source and 32 target tokens."""
    return build(batch, 512, hidden=128, num_heads=4, ffn=384, num_layers=3, lengths=(48, 32))
