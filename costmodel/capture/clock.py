"""Clocks: the host's on a CPU; on a GPU events of the device's own stream, and what the device wrote down itself.

Work on one CPU thread is timed by that thread's own time: on a quiet machine it is the wall's, and on a
busy one the wall holds the other work too (measured while other jobs ran, operators' shares were 20-40 %
wrong by the wall and 2-5 % by the thread's time).

A mark is taken where work is issued; spans are read after `wait`. Leaves out what lies between two events of a
stream when the host is slower than the device: its waiting too, so that short kernels want the device's records.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import torch
from torch.profiler import ProfilerActivity

Mark = Any
Records = list[Mapping[str, Any]]
"""Events as torch's profiler exports them (Chrome's trace format; ``ts`` and ``dur`` in microseconds)."""


class Clock(Protocol):
    """Marks points in the order of issued work, and tells the time between two of them."""

    def mark(self) -> Mark:
        """Note this point of the work."""
        ...

    def wait(self) -> None:
        """Return when all issued work is done; before that no span may be read."""
        ...

    def span_ns(self, start: Mark, end: Mark) -> int:
        """Time between two marks."""
        ...

    def host_ns(self) -> int:
        """Read the host's own time, whatever the marks go by."""
        ...


@runtime_checkable
class DeviceClock(Clock, Protocol):
    """A clock of a device that works behind the host, and writes down when it ran which kernel."""

    def note(self, text: str) -> None:
        """Write a note into the records, at the point that the host has come to."""
        ...

    def records(self) -> AbstractContextManager[Records]:
        """Record what is issued inside; the list is filled when the context is left."""
        ...


class HostClock:
    """``perf_counter_ns``: work on a CPU is done when the call returns."""

    mark = staticmethod(time.perf_counter_ns)
    host_ns = staticmethod(time.perf_counter_ns)

    def wait(self) -> None:
        """Nothing is ever pending."""

    def span_ns(self, start: Mark, end: Mark) -> int:
        """Time between two marks."""
        elapsed: int = end - start
        return elapsed


class ThreadClock(HostClock):
    """CPU time of this thread: what other processes take from it does not count."""

    mark = staticmethod(time.thread_time_ns)


class EventClock:
    """CUDA events on the current stream of one device; torch's profiler (CUPTI) keeps the records."""

    host_ns = staticmethod(time.perf_counter_ns)

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> Mark:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self) -> None:
        """Return when the device has done all issued work."""
        torch.cuda.synchronize(self.device)

    def span_ns(self, start: Mark, end: Mark) -> int:
        """Time between two events."""
        milliseconds: float = start.elapsed_time(end)
        return round(milliseconds * 1e6)

    def note(self, text: str) -> None:
        """Write an empty annotation."""
        with torch.profiler.record_function(text):
            pass

    @contextmanager
    def records(self) -> Iterator[Records]:
        """Record what is issued inside."""
        with traced([ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            yield found
            self.wait()


@contextmanager
def traced(activities: list[ProfilerActivity]) -> Iterator[Records]:
    """Yield a list that holds, once the context is left, what torch's profiler has seen in it."""
    found: Records = []
    with torch.profiler.profile(activities=activities) as seen:
        yield found
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        found += json.loads(path.read_text())["traceEvents"]


def clock_for(device: torch.device, num_threads: int = 1) -> Clock:
    """Return the clock that times work on a device; on a CPU by that many threads."""
    if device.type == "cuda":
        return EventClock(device)
    return ThreadClock() if num_threads == 1 and _is_fine(time.thread_time_ns) else HostClock()


def _is_fine(read: Callable[[], int]) -> bool:
    """Whether a clock tells microseconds apart; some systems count a thread's time in ticks."""
    steps = [read() for _ in range(50)]
    return len(set(steps)) > 25
