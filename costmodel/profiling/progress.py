"""Progress of a long measurement: now and then a line of text with the time left."""

import time
from collections.abc import Callable

SECONDS_BETWEEN_LINES = 1.0


class Progress:
    """Counts work done and tells how long the rest will take.

    Parameters
    ----------
    say : callable
        Gets each line.
    total : float
        All work, in the unit of `advance`.
    """

    def __init__(self, say: Callable[[str], None], total: float) -> None:
        self.say = say
        self._total = total
        self._done = 0.0
        self._start = self._last = time.monotonic()

    def advance(self, text: str, work: float) -> None:
        """Note that `work` more is done; print it unless a line was printed just now."""
        self._done += work
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        left = (now - self._start) / self._done * max(0.0, self._total - self._done)
        self.say(f"{text}; about {left:.0f} s left")
