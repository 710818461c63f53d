"""Clocks: the host's on a CPU, events of the device's own stream on a GPU; callers see no difference.

Work on one CPU thread is timed by that thread's own time: on a quiet machine it is the wall's, and on a
busy one the wall holds the other work too (measured beside other jobs, operators' shares were 20-40 %
wrong by the wall and 2-5 % by the thread's time).

A mark is taken where work is issued; spans are read after `wait`. Leaves out launch overhead on a GPU:
there a span is the device's time between two points of its stream.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

Mark = Any


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


class HostClock:
    """``perf_counter_ns``: work on a CPU is done when the call returns."""

    mark = staticmethod(time.perf_counter_ns)

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
    """CUDA events on the current stream of one device."""

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


def clock_for(device: torch.device, num_threads: int = 1) -> Clock:
    """Return the clock that times work on a device; on a CPU by that many threads."""
    if device.type == "cuda":
        return EventClock(device)
    return ThreadClock() if num_threads == 1 and _is_fine(time.thread_time_ns) else HostClock()


def _is_fine(read: Callable[[], int]) -> bool:
    """Whether a clock tells microseconds apart; some systems count a thread's time in ticks."""
    steps = [read() for _ in range(50)]
    return len(set(steps)) > 25
