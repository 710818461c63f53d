"""Time inside kernels apart from the wall's, and memory at its highest, of one whole step.

Kernel time far below the wall's means that launches bind, not the device. Leaves out which kernel it was.
"""

import torch
from torch.profiler import ProfilerActivity

from costmodel.capture.batches import TrainingModel
from costmodel.capture.clock import Clock
from costmodel.capture.parts import Part
from costmodel.profiling.measure.timing import time_whole


def kernel_ns(whole: Part, piece: TrainingModel, clock: Clock, device: torch.device) -> int:
    """Return the time inside kernels of one forward and backward; 0 on a CPU, whose calls are the kernels."""
    if device.type != "cuda":
        return 0
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
        time_whole(whole, piece, clock)
    rows = [row for row in seen.key_averages() if row.device_type.name == "CUDA"]
    return int(1000 * sum(row.self_device_time_total for row in rows))


def highest_bytes(whole: Part, piece: TrainingModel, clock: Clock, device: torch.device) -> int:
    """Return what a step allocates at its highest above what was there; 0 on a CPU, which keeps no count."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    time_whole(whole, piece, clock)
    return torch.cuda.max_memory_allocated(device) - before
