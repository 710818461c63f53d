"""Steps of micro-batches of unlike shapes on ranks, beside one process with all samples as one padded batch."""

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from costmodel.capture.batches import TARGETS, TrainingModel
from costmodel.capture.capture import Capture, capture
from costmodel.errors import PenstockError
from costmodel.stages.config import StageConfig
from executor import Pipeline
from executor.observe.check import compare
from planner.plan import Plan
from simulator.schedules import SCHEDULES
from simulator.uniform import uniform_costs
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand, split_backwards, with_recompute

VOCABULARY, WIDTH, LONGEST, NO_LABEL = 20, 8, 8, -100
LENGTHS = {"tokens": 1, "places": 1, "sees": (2, 3), TARGETS: 1}
SAMPLES = ((5, 2, 1), (8,), (3, 3), (1, 1, 1, 1, 1))
"""Tokens of the samples of micro-batches, which lie in one row each, or in one each."""


class Packed(nn.Module):
    """A decoder of rows of tokens, each at its place, of which each sees what its row of `sees` says."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.side, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(places)
        side = self.side(x).tanh()
        for layer in (self.first, self.second):
            q, k, v = layer(x).unsqueeze(1).chunk(3, dim=-1)
            x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=sees).squeeze(1)
        found: torch.Tensor = self.head(x + side)
        return found


def summed(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum over labels, and how many there are."""
    total = F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1), ignore_index=NO_LABEL, reduction="sum")
    return total, (labels != NO_LABEL).sum()


def mean(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean over a micro-batch's labels."""
    total, weight = summed(logits, labels)
    return total / weight


Inputs = dict[str, torch.Tensor]


def in_rows(rows: Sequence[Sequence[torch.Tensor]], length: int) -> tuple[Inputs, torch.Tensor]:
    """Return rows of samples, one behind the other, filled up to a length; the labels are the next tokens."""
    tokens, labels = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), NO_LABEL)
    places = torch.zeros(len(rows), length, dtype=torch.long)
    sees = torch.eye(length, dtype=torch.bool).repeat(len(rows), 1, 1, 1)
    for i, row in enumerate(rows):
        start = 0
        for sample in row:
            here = slice(start, start + len(sample))
            tokens[i, here], places[i, here] = sample, torch.arange(len(sample))
            labels[i, here] = (sample * 3 + 1) % VOCABULARY
            sees[i, 0, here, here] = torch.ones(len(sample), len(sample), dtype=torch.bool).tril()
            start += len(sample)
    return {"tokens": tokens, "places": places, "sees": sees}, labels


def drawn(samples: Sequence[Sequence[int]]) -> list[list[torch.Tensor]]:
    """Return tokens of samples, the same on each rank."""
    generator = torch.Generator().manual_seed(2)
    return [[torch.randint(VOCABULARY, (n,), generator=generator) for n in row] for row in samples]


def microbatches(samples: Sequence[Sequence[int]], packed: bool) -> list[tuple[Inputs, torch.Tensor]]:
    """Return micro-batches whose samples lie in one row each, or in as many rows as they are."""
    found = []
    for row in drawn(samples):
        rows = [row] if packed else [[sample] for sample in row]
        found.append(in_rows(rows, max(sum(map(len, each)) for each in rows)))
    return found


def undivided(samples: Sequence[Sequence[int]], loss: Callable[..., Any] = summed) -> TrainingModel:
    """Return the model with all samples as one batch, a row each, padded to the longest."""
    torch.manual_seed(3)
    rows = [[sample] for row in drawn(samples) for sample in row]
    inputs, labels = in_rows(rows, LONGEST)
    return TrainingModel("packed", Packed().double(), (), inputs, labels, True, loss, {}, len(rows))


@cache
def captured(free: bool = True) -> Capture:
    example = undivided([(LONGEST,)] * 4)
    return capture(replace(example, lengths=LENGTHS if free else {}))


def plan_of(schedule: str = "1f1b", num_ranks: int = 4, data: int = 1, zero: int = 0, **options: Any) -> Plan:
    """Return a plan of micro-batches of two samples; a name of no schedule is one of those made by hand."""
    chunks, ranks = 1, None
    if schedule in SCHEDULES:
        kind = SCHEDULES[schedule]
        chunks = 2 if kind.placement == "loop" else kind.chunks
        ranks = uniform_costs(num_ranks, chunks, 1, 1, 1, placement=kind.placement).ranks
    if data > 1:
        ranks = [tuple(range(s, s + data)) for s in range(0, num_ranks, data)]
    groups = in_equal_runs(captured().operators, len(ranks) if ranks else num_ranks * chunks)
    made: Any = {"split": split_backwards, "recompute": with_recompute}.get(schedule, schedule)
    configs = [StageConfig(data=data, zero=zero)] * len(groups)
    return plan_by_hand(captured(), groups, ranks=ranks, schedule=made, configs=configs, **options)


def errors(
    samples: Sequence[Sequence[int]] = SAMPLES, packed: bool = True, short: bool = False, **options: Any
) -> dict[str, float]:
    """Return how far loss and gradients of two steps are from those of one undivided batch, and an evaluation is."""
    own = replace(undivided([(LONGEST,)] * 8), lengths=LENGTHS)  # stages that divide parameters take it
    with Pipeline(plan_of(**options), own if "zero" in options else captured()) as pipe:
        given = microbatches(samples, packed)
        pipe.step(microbatches=microbatches(samples[::-1], not packed), short=short)
        pipe.step(microbatches=given, short=short)
        found = compare(pipe.worker, undivided(samples) if pipe.rank == 0 else None, 1)
        evaluated = pipe.evaluate(microbatches=given, short=short)
    return {"gradient": found.max_gradient_error, "loss": found.loss_error, "evaluated": evaluated - found.loss}


def refused(samples: Sequence[Sequence[int]] = SAMPLES, loss: str = "summed", free: bool = True, **options: Any) -> str:
    """Return the error of a step."""
    source, other = captured(free), options.pop("other_on", None)
    source = replace(source, model=replace(source.model, loss=globals()[loss]))
    with Pipeline(plan_of(**options), source) as pipe:
        given = microbatches(samples, packed=True)
        try:
            pipe.step(microbatches=given[::-1] if pipe.rank == other else given)
        except PenstockError as error:
            return str(error)
    return ""


def same_length(length: int, **options: Any) -> dict[str, float]:
    """Return the errors of a whole batch of another length than the captured one, with a mean as its loss."""
    source = replace(captured(), model=replace(captured().model, loss=mean))
    with Pipeline(plan_of(**options), source) as pipe:
        samples = [(length,)] * pipe.plan.batch.global_size
        inputs, labels = in_rows(drawn(samples), length)
        pipe.step(inputs, labels)
        found = compare(pipe.worker, undivided(samples) if pipe.rank == 0 else None, 1)
    return {"gradient": found.max_gradient_error, "loss": found.loss_error}


def context() -> Any:
    """Return processes that inherit the captures."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.support.ranks.unlike_captures"])
    return made
