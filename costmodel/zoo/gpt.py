"""A GPT-2-like decoder: token and position embedding, causal pre-norm layers, a head that is not tied.

Leaves out dropout, so that every run and every split of the model gives the same loss.
"""

import torch
from torch import nn
from torch.nn import functional as F

from costmodel.zoo.layers import FusedLayer


class CausalDecoder(nn.Module):
    """Tokens (batch, sequence) to logits (batch, sequence, vocabulary)."""

    def __init__(
        self, vocabulary: int, hidden: int, num_layers: int, num_heads: int, sequence: int, tied: bool
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(sequence, hidden)
        self.layers = nn.Sequential(
            *(FusedLayer(hidden, num_heads, 4 * hidden, causal=True) for _ in range(num_layers))
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids (batch, sequence) to next-token logits."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        logits: torch.Tensor = self.head(self.norm(self.layers(x)))
        return logits


def next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each token given those before it."""
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


Example = tuple[nn.Module, tuple[torch.Tensor], torch.Tensor, object]


def build(
    batch: int = 8,
    vocabulary: int = 50257,
    hidden: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    sequence: int = 1024,
    tied: bool = False,
) -> Example:
    """Return the model (GPT-2's shape by default), tokens, the same tokens as targets and the loss."""
    torch.manual_seed(0)
    model = CausalDecoder(vocabulary, hidden, num_layers, num_heads, sequence, tied)
    tokens = torch.randint(vocabulary, (batch, sequence))
    return model, (tokens,), tokens, next_token_loss


def build_small(batch: int = 8, tied: bool = False) -> Example:
    """Six layers, hidden 192, sequence 64, vocabulary 512."""
    return build(batch, vocabulary=512, hidden=192, num_layers=6, num_heads=6, sequence=64, tied=tied)
