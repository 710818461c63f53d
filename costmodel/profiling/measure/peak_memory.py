"""The peak memory of one whole step, as the device's allocator counts it. Leaves out what holds it (`memory`)."""

import torch

from costmodel.capture.batches import TrainingModel
from costmodel.capture.clock import Clock
from costmodel.capture.parts import Part
from costmodel.profiling.measure.timing import time_whole


def peak_memory_bytes(whole: Part, piece: TrainingModel, clock: Clock, device: torch.device) -> int:
    """Return the peak of what a step allocates above what was there before; 0 on a CPU, which keeps no count.

    A step before it leaves the gradients and what libraries allocate once: neither is the step's own.
    """
    if device.type != "cuda":
        return 0
    time_whole(whole, piece, clock)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    time_whole(whole, piece, clock)
    return torch.cuda.max_memory_allocated(device) - before
