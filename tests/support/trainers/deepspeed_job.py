"""DeepSpeed's pipeline engine on two processors, under a plan of two uneven stages: ``deepspeed_job.py FOLDER``.

Prints the losses of its steps and where its stages begin, beside the losses of one process, as JSON on rank 0. The
sums in shared memory that DeepSpeed compiles for processors are left out: gloo does them.
"""

import json
import os
import sys

import torch

from executor.adapters.deepspeed import configuration, find, pipeline_module
from planner.front import model as described
from planner.question.layer_pins import with_layers
from planner.question.space import Space
from tests.support.trainers.tower import BATCH, Tower, batch_of, build, loss_of

STEPS, RATE = 4, 0.1
MODEL = "tests.support.trainers.tower:build"


def alone() -> list[float]:
    """Return the losses of one process without DeepSpeed."""
    model, _, _, _ = build()
    optimizer, losses = torch.optim.SGD(model.parameters(), RATE), []
    for step in range(STEPS):
        inputs, targets = batch_of(step)
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main(folder: str) -> None:
    """Train for a few steps."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    torch.set_num_threads(1)
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    space, pins = with_layers(described(MODEL).graph, "4,2", Space(stages=2, data=1, tensor=1, recompute="none"), None)
    plan = find(MODEL, 2, BATCH, space=space, pins=pins, microbatch_size=2, folder=folder)
    model, _, _, _ = build()
    assert isinstance(model, Tower)
    made = pipeline_module(plan, [model.entry, *model.layers, model.head], loss_fn=loss_of)
    config = {**configuration(plan), "optimizer": {"type": "SGD", "params": {"lr": RATE}}}
    engine, *_ = deepspeed.initialize(model=made, model_parameters=list(made.parameters()), config=config)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch_of(step)
        size = plan.batch.microbatch_size
        losses.append(float(engine.train_batch(iter(list(zip(inputs.split(size), targets.split(size), strict=True))))))
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"losses": losses, "alone": alone(), "bounds": made.parts}), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
