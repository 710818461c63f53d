"""A training job around a plan: a small decoder learns the characters of this project's licence.

    penstock profile examples.train:build -o profile.json
    penstock plan profile.json --devices 4 --batch 32 --pin examples/four_stages.toml -o plan.json
    torchrun --nproc-per-node 4 -m examples.train plan.json --steps 150 --checkpoint out/job
    torchrun ... -m examples.train --book book.json --checkpoint out/job    # goes on with fewer hosts when one is lost
    python -m examples.train --steps 150                               # the same in one process

The pins only see to it that four ranks work; without them the search decides. Both print the same losses: the model
starts alike, every rank draws the same batches, and the gradients are those of one process. Started again with the
same folder, under this plan or another, the job goes on where it was saved; of a book each start takes the page for as
many ranks as run. Leaves out data loading.
"""

import argparse
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from costmodel.errors import PenstockError
from costmodel.zoo.gpt import CausalDecoder, next_token_loss
from executor import Pipeline

SEQUENCE, BATCH, RATE, MAX_NORM = 48, 32, 3e-3, 1.0
WARM_UP, HORIZON, EVERY = 10, 400, 20
GOAL = 2.0
"""Loss in nats a character that 150 steps reach; guessing by frequency alone gives 3.0."""


def text() -> torch.Tensor:
    """Return the licence as character codes."""
    path = Path(__file__).resolve().parent.parent / "LICENSE"
    return torch.tensor([min(code, 127) for code in path.read_bytes()])


def batch_of(step: int, size: int = BATCH) -> torch.Tensor:
    """Return `size` pieces of the text, the same on every rank."""
    codes, generator = text(), torch.Generator().manual_seed(step)
    starts = torch.randint(len(codes) - SEQUENCE, (size,), generator=generator)
    return torch.stack([codes[start : start + SEQUENCE] for start in starts.tolist()])


def build(batch: int = 4) -> tuple[nn.Module, tuple[torch.Tensor], torch.Tensor, Any]:
    """Return the model, tokens, the same tokens as targets, and the loss."""
    torch.manual_seed(0)
    model = CausalDecoder(vocabulary=128, hidden=64, num_layers=4, num_heads=4, sequence=SEQUENCE, tied=False)
    tokens = batch_of(0, batch)
    return model, (tokens,), tokens, next_token_loss


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer: matrices decay, vectors do not."""
    decays, stays = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() < 2]
    return torch.optim.AdamW([{"params": decays, "weight_decay": 0.1}, {"params": stays, "weight_decay": 0.0}], RATE)


def rate_at(step: int) -> float:
    """Return the learning rate: a warm-up, then half a cosine."""
    return RATE * min((step + 1) / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * min(step / HORIZON, 1.0)))


def main() -> int:
    """Train alone, or as one rank of a plan; exit 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", help="a plan of examples.train:build; without it one process trains alone")
    parser.add_argument("--book", help="in place of a plan: a book (penstock book), of which each start takes its page")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--checkpoint", metavar="FOLDER", help="where the job is saved, and goes on from")
    arguments = parser.parse_args()
    if arguments.plan and arguments.book:
        parser.error("give a plan or a --book, not both")
    plan, num_steps = arguments.plan or arguments.book, arguments.steps
    torch.set_num_threads(1)
    try:
        losses = train_plan(plan, num_steps, arguments.checkpoint) if plan else train_alone(num_steps)
    except PenstockError as error:  # the plan does not fit: say so in one line
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    last = losses[-10:]
    return 0 if arguments.steps < 150 or not last or sum(last) / len(last) < GOAL else 1


def train_plan(plan: str, num_steps: int, folder: str | None = None) -> list[float]:
    """Train with a pipeline, from where the folder's checkpoint stands; returns the losses of its steps."""
    model, inputs, targets, loss = build(BATCH)
    options: dict[str, Any] = {"inputs": inputs, "targets": targets, "optimizer": adamw, "max_norm": MAX_NORM}
    losses = []
    with Pipeline.from_plan(plan, model, loss, **options) as pipe:
        first = pipe.load(folder) if folder and Path(folder).exists() else 0
        for step in range(first, num_steps):
            for group in pipe.optimizer.param_groups:
                group["lr"] = rate_at(step)
            tokens = batch_of(step)
            losses.append(pipe.step((tokens,), tokens))  # forward, backward, clipping, AdamW; the loss on every rank
            say(step, losses[-1])
            if step % EVERY == EVERY - 1:
                unseen = batch_of(-step)
                say(step, pipe.evaluate((unseen,), unseen), "evaluated")
                if folder:
                    pipe.save(folder)
    return losses


def train_alone(num_steps: int) -> list[float]:
    """Train in one process; returns the losses of the steps."""
    model, _, _, loss = build(BATCH)
    optimizer, losses = adamw(list(model.parameters())), []
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step)
        tokens = batch_of(step)
        optimizer.zero_grad()
        value = loss(model(tokens), tokens)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        losses.append(float(value.detach()))
        say(step, losses[-1])
        if step % EVERY == EVERY - 1:
            model.eval()
            unseen = batch_of(-step)
            with torch.no_grad():
                say(step, float(loss(model(unseen), unseen)), "evaluated")
            model.train()
    return losses


def say(step: int, loss: float, what: str = "loss") -> None:
    """Print a loss now and then, on rank 0 alone."""
    if os.environ.get("RANK", "0") == "0" and (what != "loss" or step % 10 == 0):
        print(f"step {step:4d}  {what} {loss:.5f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
