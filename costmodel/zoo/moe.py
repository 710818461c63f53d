"""A Mixtral-like decoder: each token goes to two of several experts, by top-k routing with fixed shapes.

Every expert has room for a number of tokens of each sample (its capacity); a token without room skips that
expert. So no shape depends on data, no Python branches on it, and samples do not compete with each other:
the loss separates over micro-batches. Leaves out the load-balancing loss.
"""

import math

import torch
from torch import nn

from costmodel.zoo.gpt import next_token_loss
from costmodel.zoo.llama import GatedFeedForward, Llama


class RoutedFeedForward(nn.Module):
    """Routing of (batch, sequence, hidden) to `num_experts` feed-forwards, `num_chosen` a token."""

    def __init__(self, hidden: int, ffn: int, num_experts: int, num_chosen: int, slack: float) -> None:
        super().__init__()
        self.num_experts, self.num_chosen, self.slack = num_experts, num_chosen, slack
        self.router = nn.Linear(hidden, num_experts, bias=False)
        self.experts = nn.ModuleList(GatedFeedForward(hidden, ffn) for _ in range(num_experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape."""
        capacity = math.ceil(x.shape[1] * self.num_chosen / self.num_experts * self.slack)
        weight, expert = self.router(x).softmax(dim=-1).topk(self.num_chosen, dim=-1)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        chosen = expert.unsqueeze(-1) == torch.arange(self.num_experts, device=x.device)
        # Seats are whole numbers: 16-bit floats would give two tokens one seat from 257 on.
        taken, gates = chosen.sum(dim=2), (chosen * weight.unsqueeze(-1)).sum(dim=2)
        seat = (taken.cumsum(dim=1) - 1) * taken + (taken - 1)  # -1 for who is not sent there
        seats = torch.arange(capacity, device=x.device)
        out = torch.zeros_like(x)
        for i, network in enumerate(self.experts):
            place = (seat[..., i, None] == seats).to(x.dtype)  # (batch, sequence, capacity)
            found = network(place.transpose(1, 2) @ x)
            out = out + gates[..., i, None] * (place @ found)
        return out


Example = tuple[nn.Module, tuple[torch.Tensor], torch.Tensor, object]


def build(
    batch: int = 1,
    vocabulary: int = 32000,
    hidden: int = 4096,
    ffn: int = 14336,
    num_layers: int = 32,
    num_heads: int = 32,
    num_kv_heads: int = 8,
    sequence: int = 2048,
    num_experts: int = 8,
) -> Example:
    """Return the model (Mixtral 8x7B's shape by default), tokens, the same as targets and the next-token loss."""
    torch.manual_seed(0)
    model = Llama(
        vocabulary, hidden, num_layers, num_heads, num_kv_heads,
        lambda: RoutedFeedForward(hidden, ffn, num_experts, num_chosen=2, slack=1.25),
    )  # fmt: skip
    tokens = torch.randint(vocabulary, (batch, sequence))
    return model, (tokens,), tokens, next_token_loss


def build_small(batch: int = 4) -> Example:
    """Two layers of four experts, hidden 128, sequence 48."""
    return build(batch, 512, 128, 256, 2, num_heads=4, num_kv_heads=2, sequence=48, num_experts=4)
