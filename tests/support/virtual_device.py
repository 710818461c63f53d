"""A device in virtual time: kernels of given duration, issued by a host of given speed through a bounded queue.

Tensors live on the CPU and are computed there; only the time is made up. Records are written as torch's profiler
writes them on a GPU: annotations, launches by the host's time, kernels by the device's, joined by correlation ids.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

QUEUE = 1024


@dataclass(eq=False)
class VirtualDevice(TorchDispatchMode):
    """A clock (`costmodel.capture.clock.DeviceClock`) and the device that it belongs to, entered as a context.

    `duration_ns` gives a call's kernel its time by the operator's name; calls that only make views have none.
    """

    duration_ns: Callable[[str], int]
    call_ns: int = 33_000
    mark_ns: int = 13_000
    host: int = 0
    device: int = 0
    queued: deque[int] = field(default_factory=deque)
    events: list[Mapping[str, Any]] | None = None
    launches: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, FakeTensor) for leaf in _tensors((args, kwargs, result))):
            return result  # a capture computes nothing
        self.host += self.call_ns
        before = {leaf.untyped_storage().data_ptr() for leaf in _tensors((args, kwargs))}
        new = [leaf for leaf in _tensors(result) if leaf.untyped_storage().data_ptr() not in before]
        if new or func._schema.is_mutable:
            self._launch(func._schema.name.split("::")[-1])
        return result

    def _launch(self, name: str) -> None:
        while self.queued and (len(self.queued) >= QUEUE or self.queued[0] <= self.host):
            self.host = max(self.host, self.queued.popleft())
        start = max(self.device, self.host)
        self.device = start + self.duration_ns(name)
        self.queued.append(self.device)
        self.launches += 1
        self._write("cuda_runtime", "cudaLaunchKernel", self.host, 2_000)
        self._write("kernel", name, start, self.device - start)

    def _write(self, category: str, name: str, start_ns: int, duration_ns: int) -> None:
        if self.events is not None:
            named = {"ph": "X", "cat": category, "name": name, "args": {"correlation": self.launches}}
            self.events.append({**named, "ts": start_ns / 1000, "dur": duration_ns / 1000})

    def mark(self) -> int:
        """Record an event: when the stream comes to it."""
        self.host += self.mark_ns
        self.device = max(self.device, self.host)
        return self.device

    def wait(self) -> None:
        """Let the host wait for the device."""
        self.host = self.device = max(self.device, self.host)
        self.queued.clear()

    def span_ns(self, start: int, end: int) -> int:
        """Time between two events."""
        return end - start

    def host_ns(self) -> int:
        """The host's time; reading it takes a while, too."""
        self.host += self.mark_ns
        return self.host

    def note(self, text: str) -> None:
        """Write an annotation."""
        self.host += self.mark_ns
        self._write("user_annotation", text, self.host, 0)

    @contextmanager
    def records(self) -> Iterator[list[Mapping[str, Any]]]:
        """Record what is issued inside."""
        self.events = found = []
        yield found
        self.wait()
        self.events = None


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
