"""Estimated times: a central value between a lower and an upper one.

The three values are scenarios, not a confidence interval: they come from the low, central and high rows of the
efficiency tables. Leaves out how they are computed (`costmodel.roofline.operators`).
"""

from dataclasses import dataclass
from math import ceil

from costmodel.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Interval:
    """A time of which only an estimate is known.

    Raises
    ------
    InvalidInput
        When the values are negative or out of order.
    """

    low_ns: int
    central_ns: int
    high_ns: int

    def __post_init__(self) -> None:
        if not 0 <= self.low_ns <= self.central_ns <= self.high_ns:
            raise InvalidInput(
                f"an interval of {self.low_ns}, {self.central_ns}, {self.high_ns} ns; it needs "
                "0 <= low <= central <= high"
            )

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(self.low_ns + other.low_ns, self.central_ns + other.central_ns, self.high_ns + other.high_ns)

    def times(self, factor: float) -> "Interval":
        """Return each value times a factor."""
        if factor == 1:
            return self
        return rounded_up((self.low_ns * factor, self.central_ns * factor, self.high_ns * factor))


NOTHING = Interval(0, 0, 0)


def rounded_up(times_ns: tuple[float, float, float]) -> Interval:
    """Return the interval of whole ns that is not below (low, central, high), so that no roof is undercut."""
    low, central, high = (ceil(time) for time in times_ns)
    return Interval(low, central, high)


@dataclass(frozen=True, slots=True)
class OperatorEstimate:
    """Estimated times of one operator; gradient accumulation left out, as in a profile."""

    forward: Interval
    backward_input: Interval = NOTHING
    backward_weight: Interval = NOTHING

    def times(self, factor: float) -> "OperatorEstimate":
        """Return each time times a factor."""
        if factor == 1:
            return self
        parts = self.forward, self.backward_input, self.backward_weight
        return OperatorEstimate(*(part.times(factor) for part in parts))
