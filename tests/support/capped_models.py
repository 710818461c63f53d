"""Small models of random widths, depths and layers, each a function of this module: ``model0``, ``model1``, ...

Their inputs are tokens, so that next to nothing of a step's memory is the batch itself.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 64
LAYERS = ("feed-forward", "gated", "attention", "convolution")
GPU_SCALE = 8
"""By how much tensors are wider and longer on a GPU, where small ones are lost in what its allocator rounds up."""


class Layer(nn.Module):
    """A residual layer of one kind."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind, self.norm = kind, nn.LayerNorm(width)
        out = {"feed-forward": 4, "gated": 6, "attention": 3, "convolution": 2}[kind] * width
        into = {"feed-forward": 4, "gated": 3, "attention": 1, "convolution": 2}[kind] * width
        self.up = nn.Conv1d(width, out, 3, padding=1) if kind == "convolution" else nn.Linear(width, out)
        self.down = nn.Linear(into, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        if self.kind == "convolution":
            return x + self.down(F.relu(self.up(normed.transpose(1, 2)).transpose(1, 2)))
        inner = self.up(normed)
        if self.kind == "feed-forward":
            return x + self.down(F.gelu(inner))
        if self.kind == "gated":
            gate, value = inner.chunk(2, -1)
            return x + self.down(F.silu(gate) * value)
        queries, keys, values = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in inner.chunk(3, -1))
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return x + self.down(mixed.transpose(1, 2).flatten(2))


class Small(nn.Module):
    def __init__(self, rng: Random, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(rng.choice(LAYERS), width) for _ in range(rng.randint(3, 6)))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if rng.random() < 0.3:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build(seed: int, batch: int = 8) -> Any:
    """Return the model of a seed as ``penstock profile`` takes it."""
    rng, scale = Random(seed), GPU_SCALE if torch.cuda.is_available() else 1
    width, length = scale * 16 * rng.randint(2, 6), scale * 8 * rng.randint(1, 4)
    model = Small(rng, width)
    tokens = torch.arange(batch * (length + 1)).remainder(VOCABULARY).view(batch, length + 1)
    return model, (tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous(), token_loss


def token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def __getattr__(name: str) -> Callable[..., Any]:
    if not name.removeprefix("model").isdecimal():
        raise AttributeError(name)
    return partial(build, int(name.removeprefix("model")))
