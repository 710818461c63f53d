"""What ranks do that train by torch's own pipelining under its profiler, and leave a Kineto trace each."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

SCHEDULES = {
    "gpipe": (ScheduleGPipe, 1),
    "1f1b": (Schedule1F1B, 1),
    "interleaved-1f1b": (ScheduleInterleaved1F1B, 2),
}
"""Our name -> torch's class, stages a rank."""
LAYERS = 8


def traced(schedule: str, folder: str, microbatches: int, num_steps: int, stacks: bool, width: int) -> str:
    """Train on one rank, a few steps profiled; returns the trace's path. The last stages have one layer more each."""
    rank, ranks, (kind, chunks) = dist.get_rank(), dist.get_world_size(), SCHEDULES[schedule]
    torch.manual_seed(0)
    layers = LAYERS // (ranks * chunks)
    places = [rank + ranks * chunk for chunk in range(chunks)]
    modules = [nn.Sequential(*[_layer(width) for _ in range(layers + (place % ranks))]) for place in places]
    stages = [
        PipelineStage(module, place, ranks * chunks, torch.device("cpu"))
        for module, place in zip(modules, places, strict=True)
    ]
    several = issubclass(kind, PipelineScheduleMulti)
    made = kind(stages if several else stages[0], microbatches, loss_fn=F.mse_loss)  # type: ignore[operator]
    inputs, targets = torch.randn(2, microbatches * 32, width)

    def step() -> None:
        for module in modules:
            module.zero_grad()
        made.step(*((inputs,) if rank == 0 else ()), target=targets if rank == ranks - 1 else None)

    step()
    with profile(activities=[ProfilerActivity.CPU], with_stack=stacks, with_modules=stacks) as profiled:
        for _ in range(num_steps):
            step()
    path = Path(folder) / f"{schedule}-{rank}.json"
    profiled.export_chrome_trace(str(path))
    return str(path)


def _layer(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
