"""Small training models, each with one thing that pipelines trip over."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from costmodel.zoo import gpt, mmt, uno

WIDTH = 12


def small_mmt(batch: int = 4) -> Any:
    return mmt.build(batch, num_branches=3, num_layers=1, hidden=16, ffn=32, num_heads=2, sequence=6)


def small_uno(batch: int = 4) -> Any:
    return uno.build(batch, hidden=16, num_layers=2, num_residual=2, width_divisor=200)


def small_gpt(batch: int = 4) -> Any:
    return gpt.build(batch, vocabulary=40, hidden=16, num_layers=2, num_heads=2, sequence=8)


def tied_gpt(batch: int = 4) -> Any:
    """The embedding is the head's weight: both ends of the pipeline own it."""
    return gpt.build(batch, vocabulary=40, hidden=16, num_layers=1, num_heads=2, sequence=8, tied=True)


class TwoBranch(nn.Module):
    """Two branches of one stem, a long skip and a raw input that enters late; one output is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.left = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
        self.right = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.late = nn.Linear(3, WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, late: Tensor) -> Tensor:
        trunk = self.stem(x).tanh()
        joined = self.left(trunk) * self.right(trunk) + self.late(late)
        return self.head(joined + trunk)


def two_branch(batch: int = 4) -> Any:
    torch.manual_seed(1)
    return TwoBranch(), (torch.randn(batch, WIDTH), torch.randn(batch, 3)), torch.randint(5, (batch,)), F.cross_entropy


class Frozen(nn.Module):
    """A frozen encoder whose output needs no gradient, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.encoder.requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.encoder(x))


def frozen(batch: int = 4) -> Any:
    torch.manual_seed(2)
    return Frozen(), (torch.randn(batch, WIDTH),), torch.randn(batch, 4), nn.MSELoss()


class Gated(nn.Module):
    """The second tensor of each half steers which positions count, without a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        value, score = self.first(x).chunk(2, dim=-1)
        best = score.argmax(-1, keepdim=True)
        value = self.second(value.relu()).relu_()
        picked = value.gather(-1, best)
        return self.third(value) * picked


def gated(batch: int = 4) -> Any:
    torch.manual_seed(3)
    return Gated(), (torch.randn(batch, WIDTH),), lambda out: out.square().mean()


class Masked(nn.Module):
    """Tokens of unequal valid length: the loss is a sum with its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(tokens)).tanh())


def masked_sum(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    flat = labels.reshape(-1)
    total = F.cross_entropy(logits.reshape(-1, 20), flat, ignore_index=-100, reduction="sum")
    return total, (flat != -100).sum()


def masked(batch: int = 4) -> Any:
    torch.manual_seed(4)
    model = Masked()
    tokens = torch.randint(20, (batch, 6))
    labels = tokens.roll(-1, 1)
    for row in range(batch):
        labels[row, 1 + row % 6 :] = -100
    return model, (tokens,), labels, masked_sum


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(3, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.head(self.mix(self.lift(x).relu()) * scale)


def sequence_first(batch: int = 4) -> Any:
    """The batch is the second dimension; one input has none."""
    torch.manual_seed(5)
    return {
        "model": SequenceFirst(),
        "inputs": (torch.randn(7, batch, 3), torch.rand(WIDTH)),
        "loss": lambda out: out.square().mean(),
        "split": {0: 1, 1: None},
    }


def unseeded(batch: int = 4) -> Any:
    """Other parameters on every call, whatever seed is set."""
    torch.seed()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
    return model, (torch.randn(batch, WIDTH),), lambda out: out.square().mean()


def normed(batch: int = 4) -> Any:
    """Batch statistics, which are buffers that the forward updates."""
    torch.manual_seed(6)
    layers = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(WIDTH, 3))
    return model, (torch.randn(batch, WIDTH),), torch.randint(3, (batch,)), F.cross_entropy
