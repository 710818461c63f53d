"""When each action of a step began and ended, on this rank's own clock.

On a CPU an action is over when its call returns. A GPU works later than it is asked to: there every mark is an event of
the device's stream, put on the host's clock once the step is over, so that a wait lasts as long as the stream stands
still for a message and whatever lies between two spans is idle time of the device. Leaves out other ranks' clocks
(`measure`).
"""

import time
from dataclasses import dataclass
from typing import Any

import torch

from costmodel.capture.clock import Clock, EventClock
from simulator.actions import Action

RawSpan = tuple[Action, str, int, int]
"""Action, stream, start and end on this rank's clock in ns."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """An action, or the wait for its message or sum, between two marks."""

    action: Action
    stream: str
    start: Any
    end: Any
    waits: bool


class Recorder:
    """The spans of one step.

    Parameters
    ----------
    device : Clock, optional
        Marks points of a device's work, where that runs behind the host.
    """

    def __init__(self, device: Clock | None = None) -> None:
        self._device = device
        self._noted: list[_Noted] = []

    @classmethod
    def on(cls, device: torch.device) -> "Recorder":
        """Return the recorder of a rank whose stages compute on this device."""
        return cls(EventClock(device) if device.type == "cuda" else None)

    def clear(self) -> None:
        """Begin a step."""
        self._noted.clear()

    def mark(self) -> Any:
        """Note this point of the rank's work."""
        return self._device.mark() if self._device else time.perf_counter_ns()

    def note(self, action: Action, stream: str, start: Any, waits: bool = False) -> None:
        """Note an action that began at a mark and ends now, or a wait for what it started."""
        self._noted.append(_Noted(action, stream, start, self.mark(), waits))

    def spans(self, waits: bool = True) -> list[RawSpan]:
        """Return the step's spans, those of waits among them or not; waits for a device that still works."""
        device, now, now_ns = self._device, None, 0
        if device is not None:
            now = device.mark()
            device.wait()
            now_ns = time.perf_counter_ns()

        def host_ns(mark: Any) -> int:
            return int(mark) if device is None else now_ns - device.span_ns(mark, now)

        rows = [row for row in self._noted if waits or not row.waits]
        return [(row.action, row.stream, host_ns(row.start), host_ns(row.end)) for row in rows]
