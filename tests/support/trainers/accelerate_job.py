"""A script of accelerate's that follows a plan by configuration alone: ``accelerate_job.py ZERO GROUP DEVICES FOLDER``.

Prints the loss of each step, over all ranks, as JSON on rank 0. accelerate 1.15.0 leaves FSDP out on processors
(``elif self.distributed_type in [DistributedType.MULTI_GPU, ...]``), so its state is told that they are such devices.
"""

import json
import sys

import torch
from accelerate import Accelerator, DistributedType, PartialState

from examples.train import batch_of, build
from executor.adapters.accelerate import accelerator_options, find
from planner.question.space import Space

BATCH, STEPS = 16, 4


def main(zero: int, shard_group: int, num_devices: int, folder: str) -> None:
    """Train for a few steps; a shard group of 0 is all replicas."""
    torch.set_num_threads(1)
    space = Space(zero=zero, data=num_devices, shard_group=shard_group or None)
    plan = find("examples.train:build", num_devices, BATCH, space=space, folder=folder)
    model, _, _, loss_of = build()
    if zero:
        PartialState(cpu=True)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    accelerator = Accelerator(cpu=True, **accelerator_options(plan, model))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))
    losses = []
    for step in range(STEPS):
        own = batch_of(step, BATCH).chunk(accelerator.num_processes)[accelerator.process_index]
        total = torch.zeros(())
        for tokens in own.split(plan.batch.microbatch_size):
            with accelerator.accumulate(model):
                loss = loss_of(model(tokens), tokens)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        mean = total * plan.batch.microbatch_size / len(own)
        losses.append(float(accelerator.reduce(mean, "mean")))
    if accelerator.is_main_process:
        placed = sorted({str(getattr(parameter, "placements", "whole")) for parameter in model.parameters()})
        print(json.dumps({"losses": losses, "placed": placed, "type": accelerator.distributed_type.value}))
    accelerator.end_training()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4])
