"""A script of Lightning's that follows a plan by configuration alone: ``lightning_job.py ZERO DEVICES FOLDER``.

Prints the loss of each step, over all ranks, as JSON on rank 0.
"""

import json
import sys
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from examples.train import batch_of, build
from executor.adapters.lightning import find, shard, trainer_options
from planner.plan import Plan
from planner.question.space import Space

BATCH, STEPS = 16, 4


class PlannedModule(LightningModule):
    """The example's decoder, divided as a plan says."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan, self.losses = plan, list[float]()
        self.model, _, _, self.loss_of = build()

    def configure_model(self) -> None:
        """Divide the model."""
        shard(self, self.plan)

    def training_step(self, tokens: torch.Tensor, _: int) -> torch.Tensor:
        """Return the loss of a micro-batch."""
        loss = self.loss_of(self.model(tokens), tokens)
        self.losses.append(float(self.trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean")))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), 1e-3)


def main(zero: int, num_devices: int, folder: str) -> None:
    """Train for a few steps."""
    torch.set_num_threads(1)
    plan = find("examples.train:build", num_devices, BATCH, space=Space(zero=zero, data=num_devices), folder=folder)
    size, module = plan.batch.microbatch_size, PlannedModule(plan)
    quiet: dict[str, Any] = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    trainer = Trainer(accelerator="cpu", max_epochs=1, use_distributed_sampler=False, **quiet, **trainer_options(plan))
    batches = [batch_of(step, BATCH).chunk(num_devices)[trainer.global_rank] for step in range(STEPS)]
    trainer.fit(module, DataLoader([micro for batch in batches for micro in batch.split(size)], batch_size=None))
    count = len(module.losses) // STEPS
    losses = [sum(module.losses[i * count : (i + 1) * count]) / count for i in range(STEPS)]
    if trainer.is_global_zero:
        kinds = sorted({type(parameter).__name__ for parameter in module.parameters()})
        print(json.dumps({"losses": losses, "parameters": kinds, "type": type(trainer.strategy).__name__}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
