"""What ranks do on a device that works behind its host; every rank makes the same plan by itself."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from executor import Pipeline
from executor.gradients.optimizer import OPTIMIZERS
from executor.observe.check import compare
from executor.worker import Worker
from tests.support.random_training import captured_random, random_model, random_real_plan
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.virtual_streams import Streams, behind_the_host


def random_errors(seed: int, num_queues: int) -> dict[str, Any]:
    """Run a random plan of a random model on the device, and compare it with one process."""
    plan = random_real_plan(seed, torch.distributed.get_world_size())
    number = int(plan.model_name.removeprefix("random"))
    source, batch = captured_random(number), random_model(number, plan.batch.global_size)
    with behind_the_host(num_queues) as streams:
        with Pipeline(plan, source) as pipeline:
            for _ in range(2):
                pipeline.step(batch.args)
            found = compare(pipeline.worker, batch if pipeline.rank == 0 else None)
            answer = {"gradient": float(found.max_gradient_error), "loss": float(found.loss_error)}
        streams.check()
    return answer


def trained(model: str, num_queues: int = 1, max_norm: float | None = None, **options: Any) -> dict[str, Any]:
    """Train three steps by a plan with OPT; `events` are actions and all for which the host has waited, in order."""
    plan = jobs.make_plan(model, **options)
    steps = jobs.batches(model, plan.batch.global_size, 3)
    with behind_the_host(num_queues) as streams, _noting_actions(streams):
        make = OPTIMIZERS[options["optimizer"]]
        with Pipeline(plan, steps[0], optimizer=make, max_norm=max_norm) as pipeline:
            losses = []
            for batch in steps:
                streams.asked.append("step")
                losses.append(pipeline.step(batch.kwargs or batch.args, batch.targets))
                streams.asked.append("end")
            streams.drain("state")
            with _disable_current_modes():
                state = pipeline.state_dict()
            communicators = pipeline.groups.communicators
        streams.check()
    return {"events": streams.asked, "losses": losses, "state": state, "communicators": communicators}


@contextmanager
def _noting_actions(streams: Streams) -> Iterator[None]:
    plain = Worker._do

    def noting(self: Worker, instruction: Any) -> None:
        streams.asked.append(f"action {instruction.action.kind}")
        plain(self, instruction)

    Worker._do = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        Worker._do = plain  # type: ignore[method-assign]


def stand_still(arguments: list[str]) -> int:
    """Train for ever by a plan on three ranks, until one of them is stopped: victim, queues, timeout in seconds."""
    victim, num_queues, timeout_s = int(arguments[0]), int(arguments[1]), float(arguments[2])
    plan = jobs.make_plan("two_branch", optimizer="sgd")
    batch = jobs.batches("two_branch", plan.batch.global_size, 1)[0]
    with behind_the_host(num_queues):
        pipeline = Pipeline(plan, batch, optimizer=OPTIMIZERS["sgd"], timeout_s=timeout_s)
        while True:
            pipeline.step(batch.kwargs or batch.args, batch.targets)
            if pipeline.rank == victim and pipeline.watch.last_complete_step == 2:
                print("stops after this step", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
