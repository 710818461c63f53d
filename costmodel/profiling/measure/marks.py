"""Marks on a device that works behind the host: the host's time to issue, and the device's time in kernels.

Two events around an operator of short kernels measure how long the host takes to issue it, so each of the two
is taken in a pass of its own. Leaves out what both together take (`costmodel.model.launches`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from costmodel.capture.clock import Clock, DeviceClock, Mark, Records
from costmodel.profiling.measure.records import KernelSums, sum_kernels

MARKS_A_PAUSE = 64
"""Marks after which the host waits for the device: a full launch queue (1,024 entries) would hold it up unseen."""
PREFIX = "penstock mark "


class HostMarks:
    """A clock whose spans are the host's time to issue work, the device's own left out."""

    def __init__(self, clock: DeviceClock) -> None:
        self.clock = clock
        self._paused_ns = 0
        self._count = 0

    def host_ns(self) -> int:
        """Read the host's own time."""
        return self.clock.host_ns()

    def mark(self) -> Mark:
        """Read the host's time, pauses left out."""
        self._count += 1
        if self._count % MARKS_A_PAUSE == 0:
            self.wait()
        return self.clock.host_ns() - self._paused_ns

    def wait(self) -> None:
        """Wait for the device, out of every span."""
        start = self.clock.host_ns()
        self.clock.wait()
        self._paused_ns += self.clock.host_ns() - start

    def span_ns(self, start: Mark, end: Mark) -> int:
        """Return the host's time between two marks."""
        elapsed: int = end - start
        return elapsed


class KernelMarks:
    """A clock whose spans are the time inside kernels that were launched between two marks."""

    def __init__(self, clock: DeviceClock) -> None:
        self.clock = clock
        self._count = 0
        self._sums: KernelSums | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record inside; spans are read after."""
        with self.clock.records() as records:
            yield
        self.read(records)

    def read(self, records: Records) -> None:
        """Take spans from what was recorded while the marks were set."""
        self._sums = sum_kernels(records, PREFIX, self._count)

    @property
    def sums(self) -> KernelSums:
        """What the records hold."""
        assert self._sums is not None, "spans are read after the recording"  # noqa: S101
        return self._sums

    def host_ns(self) -> int:
        """Read the host's own time."""
        return self.clock.host_ns()

    def mark(self) -> Mark:
        """Write a note."""
        self.clock.note(f"{PREFIX}{self._count}")
        self._count += 1
        return self._count - 1

    def wait(self) -> None:
        """Wait for the device."""
        self.clock.wait()

    def span_ns(self, start: Mark, end: Mark) -> int:
        """Time inside kernels between two marks."""
        return self.sums.ns_before[end] - self.sums.ns_before[start]

    def num_kernels(self, start: Mark, end: Mark) -> int:
        """Kernels launched between two marks."""
        return self.sums.kernels_before[end] - self.sums.kernels_before[start]


@contextmanager
def device_spans(clock: Clock) -> Iterator[Clock]:
    """Yield a clock whose spans, read after the context, are the device's time alone: on a CPU the same one."""
    if not isinstance(clock, DeviceClock):
        yield clock
        return
    marks = KernelMarks(clock)
    with marks.recorded():
        yield marks
