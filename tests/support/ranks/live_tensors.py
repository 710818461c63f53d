"""The tensors that are alive in a rank while it runs a step of a plan, counted after each operator.

Memory as a plan counts it: no allocator and no context. On a GPU the peak is what torch's allocator counts.
"""

import gc
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from costmodel.capture.models import load_model
from executor import Pipeline
from executor.gradients.optimizer import timing_optimizer
from planner.plan import read_plan

WARM_UP_STEPS = 2


class LiveTensors(TorchDispatchMode):
    """The most bytes of tensors alive at once, as seen after each operator within the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._known: dict[int, Any] = {}

    @classmethod
    def of(cls, pipe: Pipeline) -> "LiveTensors":
        """A count that begins with the parameters of a pipeline's rank and their optimizer's states."""
        gc.collect()
        found = cls()
        states = [value for state in pipe.optimizer.state.values() for value in state.values()]
        for tensor in (*pipe.worker.parameters.values(), *states):
            found.add(tensor)
        return found

    def add(self, tensor: Any) -> None:
        """Count a tensor that is there already."""
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        own = getattr(own, "elem", own)  # what a collective still makes
        if isinstance(own, torch.Tensor):
            known = StorageWeakRef(own.untyped_storage())  # type: ignore[no-untyped-call]
            self._known[known.cdata] = known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_iter((found, args, kwargs)):
            self.add(tensor)
        self.peak = max(self.peak, self._total())
        return found

    def _total(self) -> int:
        """What is alive now; storages change in size, too: so parameters that were gathered are let go."""
        total = 0
        for key in tuple(self._known):
            storage: Any = torch.UntypedStorage._new_with_weak_ptr(key)
            if storage is None:
                del self._known[key]
            else:
                total += storage.nbytes()
        return total


def peak_bytes(plan: str, model: str, cap_bytes: int = 0) -> int:
    """Run a plan on this rank and return the peak of its last step; a GPU refuses it more than the cap."""
    read = read_plan(plan)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        whole = torch.cuda.mem_get_info()[1]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / whole) if cap_bytes else 1.0)
    with Pipeline(read, load_model(model, read.batch.global_size), optimizer=timing_optimizer(read)) as pipe:
        for _ in range(WARM_UP_STEPS):
            pipe.step()
        with LiveTensors.of(pipe) as live:
            pipe.step()
    return int(torch.cuda.max_memory_allocated()) if on_gpu else live.peak
