"""When each action of a step began and ended, on this rank's own clock.

On a CPU an action is over when its call returns. A GPU works later than it is asked to: there an action's computation
lies between two events of the device's stream, which are put on the host's clock once the step is over. Messages are
noted as the host's calls. Leaves out other ranks' clocks (`measure`).
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
    """An action between two points of time, or of the device's work."""

    action: Action
    stream: str
    start: Any
    end: Any
    on_device: bool


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

    def mark(self, stream: str) -> Any:
        """Note this point of a stream."""
        return self._device.mark() if self._device and stream == "compute" else time.perf_counter_ns()

    def note(self, action: Action, stream: str, start: Any) -> None:
        """Note an action that began at a mark and ends now."""
        self._noted.append(_Noted(action, stream, start, self.mark(stream), bool(self._device) and stream == "compute"))

    def spans(self) -> list[RawSpan]:
        """Return the step's spans; waits for a device that still works."""
        device, now, now_ns = self._device, None, 0
        if device is not None:
            now = device.mark()
            device.wait()
            now_ns = time.perf_counter_ns()

        def host_ns(row: _Noted, mark: Any) -> int:
            return now_ns - device.span_ns(mark, now) if device is not None and row.on_device else int(mark)

        return [(row.action, row.stream, host_ns(row, row.start), host_ns(row, row.end)) for row in self._noted]
