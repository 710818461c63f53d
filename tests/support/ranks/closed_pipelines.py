"""What pipelines leave behind in a world of the program's own: descriptors, threads, keys of its store."""

import gc
import os
import threading

import torch
import torch.distributed as dist

from costmodel.capture.models import load_model
from executor import Pipeline
from executor.gradients.optimizer import timing_optimizer
from tests.properties.altered_divided_plans import MODEL, base


def standing() -> dict[str, int]:
    gc.collect()
    store = dist.distributed_c10d._get_default_store()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "python threads": threading.active_count(),
        "keys": store.num_keys(),
    }


def run(name: str) -> None:
    plan = base(name)
    size = plan.batch.global_size
    with Pipeline(plan, load_model(MODEL, size), optimizer=timing_optimizer(plan)) as pipe:
        pipe.step()
        pipe.evaluate()


def left_behind(name: str) -> dict[str, int]:
    """Return what is there after a pipeline beyond what was there before it."""
    torch.ones(1).sum()
    dist.barrier()
    before = standing()
    run(name)
    dist.barrier()
    after = standing()
    return {key: after[key] - before[key] for key in before}
