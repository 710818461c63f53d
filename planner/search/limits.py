"""When a search ends: a deadline on the clock, as a backstop behind limits counted in work.

Work limits decide what is found, so that the same inputs and seed give the same plan; the clock only
ends what takes longer than the user wants to wait, and the result then says so.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class Deadline:
    """A deadline; `hit` remembers that it ended something.

    Parameters
    ----------
    seconds : float
    whole : Deadline, optional
        A deadline of which this one is so much of the time: where that ends earlier, this one does.
    """

    def __init__(self, seconds: float, whole: "Deadline | None" = None) -> None:
        self._start, self._seconds, self._reserved, self._whole = time.monotonic(), seconds, 0.0, whole
        self.hit = False

    @property
    def remaining_s(self) -> float:
        """Seconds left."""
        whole = self._whole
        late = self._seconds * whole._reserved / whole._seconds if whole and whole._seconds else self._reserved
        return max(0.0, self._start + self._seconds - late - time.monotonic())

    @property
    def passed_s(self) -> float:
        """Seconds since its end; 0 before."""
        return max(0.0, time.monotonic() - self._start - self._seconds)

    def reserve(self, seconds: float) -> None:
        """End so much earlier, in place of what was reserved before."""
        self._reserved = seconds

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        if self.remaining_s <= 0:
            self.hit = True
        return self.hit


@dataclass
class OrderPace:
    """What making an order takes at most for each action of the whole plan, as seen so far."""

    seconds: float = 5e-5

    def allows(self, num_actions: int, limits: Deadline) -> bool:
        """Whether there is time for the order of so many actions."""
        return num_actions * self.seconds <= limits.remaining_s

    @contextmanager
    def timed(self, num_actions: int) -> Iterator[None]:
        """Learn from the order that is made meanwhile."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds = max(self.seconds, (time.perf_counter() - start) / num_actions)
