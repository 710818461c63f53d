"""A training job around a plan: a small decoder learns the characters of this project's licence.

    penstock profile examples.train:build -o profile.json
    penstock plan profile.json --devices 4 --batch 32 --pin examples/four_stages.toml --optimizer none -o plan.json
    torchrun --nproc-per-node 4 -m examples.train plan.json --steps 150
    python -m examples.train --steps 150                               # the same in one process

The pins only see to it that four ranks work; without them the search decides. The loop steps its own optimizer, so the
plan has none. Both print the same losses: the model starts alike, every rank draws the same batches, and the gradients
are those of one process. Leaves out what a real job adds: data loading, checkpoints on disk, evaluation.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from costmodel.errors import PenstockError
from costmodel.zoo.gpt import Decoder, next_token_loss

SEQUENCE, BATCH, RATE, MAX_NORM = 48, 32, 3e-3, 1.0
GOAL = 2.0
"""Loss in nats a character that 150 steps reach; guessing by frequency alone gives 3.0."""


def text() -> torch.Tensor:
    """Return the licence as character codes."""
    path = Path(__file__).resolve().parent.parent / "LICENSE"
    return torch.tensor([min(code, 127) for code in path.read_bytes()])


def batch_of(step: int, size: int) -> torch.Tensor:
    """Return `size` pieces of the text, the same on every rank."""
    codes, generator = text(), torch.Generator().manual_seed(step)
    starts = torch.randint(len(codes) - SEQUENCE, (size,), generator=generator)
    return torch.stack([codes[start : start + SEQUENCE] for start in starts.tolist()])


def build(batch: int = 4) -> tuple[torch.nn.Module, tuple[torch.Tensor], torch.Tensor, Any]:
    """Return the model, tokens, the same tokens as targets, and the loss."""
    torch.manual_seed(0)
    model = Decoder(vocabulary=128, hidden=64, num_layers=4, num_heads=4, sequence=SEQUENCE, tied=False)
    tokens = batch_of(0, batch)
    return model, (tokens,), tokens, next_token_loss


def main() -> int:
    """Train alone, or as one rank of a plan; exit 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", help="a plan of examples.train:build; without it one process trains alone")
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        last = train_plan(arguments.plan, arguments.steps) if arguments.plan else train_alone(arguments.steps)
    except PenstockError as error:  # the plan does not fit: say so in one line
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0 if last < GOAL or arguments.steps < 150 else 1


def train_plan(plan: str, num_steps: int) -> float:
    """Train with a pipeline; returns the mean loss of the last ten steps."""
    from executor import Pipeline

    model, inputs, targets, loss = build(BATCH)
    with Pipeline.from_plan(plan, model, loss, inputs=inputs, targets=targets) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), RATE)

        def step(tokens: torch.Tensor) -> float:
            pipe.step((tokens,), tokens)
            pipe.clip_grad_norm_(MAX_NORM)
            optimizer.step()
            return pipe.total_loss().total

        return loop(step, num_steps)


def train_alone(num_steps: int) -> float:
    """Train in one process; returns the mean loss of the last ten steps."""
    model, _, _, loss = build(BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)

    def step(tokens: torch.Tensor) -> float:
        optimizer.zero_grad()
        value = loss(model(tokens), tokens)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        return float(value.detach())

    return loop(step, num_steps)


def loop(step: Callable[[torch.Tensor], float], num_steps: int) -> float:
    """Run the steps and print the loss now and then, on rank 0 alone."""
    losses = []
    for number in range(num_steps):
        losses.append(step(batch_of(number, BATCH)))
        if os.environ.get("RANK", "0") == "0" and (number % 10 == 0 or number == num_steps - 1):
            print(f"step {number:4d}  loss {losses[-1]:.5f}", flush=True)
    return sum(losses[-10:]) / len(losses[-10:])


if __name__ == "__main__":
    sys.exit(main())
