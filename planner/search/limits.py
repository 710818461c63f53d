"""When a search ends: a deadline on the clock, as a backstop behind limits counted in work.

Work limits decide what is found, so that the same inputs and seed give the same plan; the clock only
ends what takes longer than the user wants to wait, and the result then says so.
"""

import time


class Limits:
    """A deadline; `hit` remembers that it ended something."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.hit = False

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        if self.left_s <= 0:
            self.hit = True
        return self.hit
