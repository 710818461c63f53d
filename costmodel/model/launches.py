"""What an operator takes of the host that launches it and of the device that runs it, and what both take together.

The host issues operators one after the other, ahead of the device as far as the launch queue reaches; the device
runs them in that order, none before it is issued. So a stretch of short kernels takes the host's time, unless what the
device still has to do covers it. Kernels that take another time, as parts or on another device, are launched as before.
Leaves out how the two are measured (`costmodel.profiling.measure`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

STEPS = 4
"""Steps one after the other of which the last shows how host and device keep pace."""
QUEUE = 1024
"""Launches that CUDA takes before the host is held up (measured on several generations: 1,022 to 1,024)."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Of one operator, each one entry a micro-batch size: ns in kernels, the host's ns to issue, number of kernels."""

    device_forward_ns: tuple[int, ...]
    device_backward_ns: tuple[int, ...]
    host_forward_ns: tuple[int, ...]
    host_backward_ns: tuple[int, ...]
    kernels_forward: tuple[int, ...]
    kernels_backward: tuple[int, ...]

    def calls(self, at: Callable[[Sequence[int]], int]) -> "tuple[Call, Call]":
        """Return forward and backward at one size; `at` takes its value from one entry a size."""
        forward = at(self.host_forward_ns), at(self.device_forward_ns), at(self.kernels_forward)
        return forward, (at(self.host_backward_ns), at(self.device_backward_ns), at(self.kernels_backward))

    def pick(self, places: Iterable[int]) -> "Launches":
        """Return the entries of some sizes."""
        chosen = list(places)
        return Launches(*(tuple(getattr(self, key)[place] for place in chosen) for key in KEYS))


Call = tuple[float, float, float]
"""The host's ns, the device's, kernels."""
Times = tuple[int, int, int]
"""Forward, input gradient and weight gradient, ns."""
KEYS = tuple(member.name for member in fields(Launches))


def compose(calls: Iterable[Call]) -> list[float]:
    """Return by how much each call moves the end of the device's work, the host starting while the device is idle.

    Parameters
    ----------
    calls : iterable of (host ns, device ns, kernels)
        In the order of issue. A call without kernels moves nothing; the next one waits for its host.

    Returns
    -------
    list of float
        One entry a call, ns; their sum is when the device is done.
    """
    issued = ended = 0.0
    queued: deque[tuple[float, float]] = deque()
    waiting = 0.0
    moved = []
    for host, device, kernels in calls:
        while queued and waiting + kernels > QUEUE:
            freed, count = queued.popleft()
            issued, waiting = max(issued, freed), waiting - count
        issued += host
        before = ended
        if kernels:
            ended = max(ended, issued) + device
            queued.append((ended, kernels))
            waiting += kernels
        moved.append(ended - before)
    return moved


def paced_ns(host_ns: int, device_ns: int, coupled: float = 0.0) -> int:
    """Return the `steady` time of one action after others like it: neither host nor device is faster than it can.

    `coupled` is the part of the shorter of the two in which the longer waits for it, as where one asks the other.
    """
    return max(host_ns, device_ns) + round(coupled * min(host_ns, device_ns))


def steady(calls: Sequence[Call]) -> list[float]:
    """Return the same of a step that follows others like it: none of its calls pays for the host's start."""
    return compose([*calls] * STEPS)[-len(calls) :] if calls else []


class Composed:
    """Operators of a profile at one micro-batch size: forward and backward calls, and the times that these make up.

    Over the whole graph and in steady state; the times give the level. Leaves out a stage's own place: what stood
    before it in the profile covers its launches here, too.
    """

    def __init__(self, calls: Sequence[tuple[Call, Call]], times: Sequence[Times]) -> None:
        self._calls, self._times = calls, times

    def with_kernels(self, rows: Sequence[Times]) -> list[Times]:
        """Return what operators take whose times, were they all kernels, would be these."""
        pairs = list(zip(rows, self._times, strict=True))
        if all(row == known for row, known in pairs):
            return list(rows)
        forward, backward = self._compose([kernel_ratios(row, known) for row, known in pairs])
        return [
            _split(row, f * self._level[0], b * self._level[1])
            for row, f, b in zip(rows, forward, backward, strict=True)
        ]

    @cached_property
    def _level(self) -> tuple[float, float]:
        """The times' sums against those composed of the calls, forward and backward."""
        forward, backward = self._compose([(1.0, 1.0)] * len(self._times))
        known, inputs, weights = (sum(column) for column in zip(*self._times, strict=True))
        return known / max(1.0, sum(forward)), (inputs + weights) / max(1.0, sum(backward))

    def _compose(self, ratios: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
        """Return forward and backward of each operator when its kernels take these ratios of their time."""
        pairs = list(zip(self._calls, ratios, strict=True))
        passes = [[(c[i][0], c[i][1] * ratio[i], c[i][2]) for c, ratio in pairs] for i in (0, 1)]
        moved = steady([*passes[0], *reversed(passes[1])])
        return moved[: len(pairs)], moved[: len(pairs) - 1 : -1]


def kernel_ratios(times: Times, known: Times) -> tuple[float, float]:
    """Return how much longer forward and backward take."""
    return times[0] / max(1, known[0]), (times[1] + times[2]) / max(1, known[1] + known[2])


def _split(row: Times, forward: float, backward: float) -> Times:
    """Divide a backward into input and weight gradient as it was."""
    both = row[1] + row[2]
    weights = round(backward * row[2] / both) if both else 0
    return round(forward), round(backward) - weights, weights
