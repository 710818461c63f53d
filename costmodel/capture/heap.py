"""The C library's heap, which by default gives freed memory back to the system in the middle of a training step.

The next step then gets the same pages again, one page fault each: a quarter to a half of a small model's forward, in
some steps and not in others. A training process needs the memory again at once, so profiler and executor keep it, as
the caching allocator does on a GPU. Leaves out C libraries without ``mallopt`` (musl, macOS), where nothing changes.
"""

import ctypes
import gc

import torch

_RAN_OUT = ("DefaultCPUAllocator: can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What errors say that have no class of their own."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""glibc takes no larger one: tensors above it get their pages anew each time."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory does not suffice, a device's or the host's."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in _RAN_OUT)


def return_freed_memory() -> None:
    """Give the system what is free now, once: after a peak that will not come again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def drop_unreachable(device: torch.device) -> None:
    """Free tensors that only cycles of Python objects hold, and what a device's allocator keeps of them.

    A step that ran out of memory leaves its saved tensors so: autograd's nodes and their hooks hold each other.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def keep_freed_memory() -> None:
    """Let this process keep what it has freed; its resident size stays at the peak."""
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None:
        adjust(_TRIM_THRESHOLD, _NEVER)
        adjust(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
