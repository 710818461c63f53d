"""What the ranks of `benchmarks.lengths` do: steps of one batch in two ways to make micro-batches of it, in turn.

The model is one of tokens that see those before them in a window, so that samples whose lengths are whole windows lie
one behind the other without padding, and no sample sees another. Both ways run in one pipeline, under one plan. Leaves
out attention over whole samples, which no kernel of a CPU has for samples that lie in one row.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from costmodel.capture.batches import TARGETS
from costmodel.capture.capture import Capture, capture
from costmodel.capture.models import load_model
from executor import Pipeline
from planner.plan import read_plan

WINDOW, HIDDEN, LAYERS, VOCABULARY = 16, 192, 4, 64
TOKENS = 8 * WINDOW
"""Of a sample for which plans are made."""

Microbatches = Sequence[Sequence[int]]
"""Tokens of the samples of each micro-batch."""
Given = Sequence[tuple[tuple[torch.Tensor], torch.Tensor]]
"""Inputs and labels of each micro-batch."""


class Windowed(nn.Module):
    """A layer: each token takes in the mean of those before it in its window, then a feed-forward net."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.register_buffer("share", 1 / torch.arange(1, WINDOW + 1).view(-1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (rows, tokens, hidden) to the same."""
        windows = self.mix(self.norm(x)).unflatten(1, (-1, WINDOW))
        x = x + (windows.cumsum(2) * self.share).flatten(1, 2)
        found: torch.Tensor = x + self.down(F.gelu(self.up(x)))
        return found


def build(batch: int = 2) -> Any:
    """Return the model, tokens, labels and the loss: a sum over tokens, and how many they are."""
    torch.manual_seed(0)
    layers = [Windowed() for _ in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, HIDDEN), *layers, nn.Linear(HIDDEN, VOCABULARY))
    tokens = torch.randint(VOCABULARY, (batch, TOKENS))
    return model, (tokens,), tokens, summed


def summed(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the sum of the tokens' losses, and how many tokens there are."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), labels.numel()


@dataclass(frozen=True, slots=True)
class Measured:
    """Step times on one rank of each way in ns, and by how much its gradients are other than a plain loop's."""

    steps_ns: tuple[tuple[int, ...], ...]
    gradient_error: float


@cache
def captured(batch: int) -> Capture:
    """Return the model captured with free lengths; once a process."""
    return capture(replace(load_model("benchmarks.lengths.ranks:build", batch), lengths={0: 1, TARGETS: 1}))


def measured_steps(plan: str, ways: Sequence[Microbatches], num_rounds: int) -> Measured:
    """Return what a batch's ways to make micro-batches come to, in one pipeline."""
    read = read_plan(plan)
    with Pipeline(read, captured(read.batch.global_size)) as pipe:
        return _in_turn(pipe, [[packed(row) for row in way] for way in ways], num_rounds)


def _in_turn(pipe: Pipeline, ways: Sequence[Given], num_rounds: int) -> Measured:
    """Run a step of each way in turn, who goes first changing from round to round, after one round to warm up."""
    times: list[list[int]] = [[] for _ in ways]
    error = 0.0
    for number in range(-1, num_rounds):
        for way in (range(len(ways)), range(len(ways))[::-1])[number % 2]:
            for parameter in pipe.parameters():
                parameter.grad = None
            dist.barrier()
            start = time.perf_counter_ns()
            pipe.step(microbatches=ways[way])
            if number >= 0:
                times[way].append(time.perf_counter_ns() - start)
            else:
                error = max(error, _error(dict(pipe.named_parameters()), ways[0]))
    return Measured(tuple(map(tuple, times)), error)


def packed(samples: Sequence[int]) -> tuple[tuple[torch.Tensor], torch.Tensor]:
    """Return samples in one row, one behind the other: what a token is follows from its place in its sample alone."""
    tokens = torch.cat([(torch.arange(n) ** 2 + n // WINDOW) % VOCABULARY for n in samples]).unsqueeze(0)
    return (tokens,), (tokens * 5 + 1) % VOCABULARY


def _error(parameters: dict[str, nn.Parameter], microbatches: Given) -> float:
    """Return the largest difference from a plain loop's gradients, of the largest entry of each."""
    model, *_ = build()
    total = 0
    for inputs, labels in microbatches:
        loss, weight = summed(model(*inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        total += weight
    worst = 0.0
    for name, plain in model.named_parameters():
        own = parameters[name].grad if name in parameters else None
        if own is not None:
            wanted = plain.grad / total
            worst = max(worst, float((own - wanted).abs().max() / wanted.abs().max()))
    return worst
