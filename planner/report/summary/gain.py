"""What a plan gains over another one, with the interval that the error of their predictions leaves.

The two errors are taken as independent; what both have alike cancels, so that the interval is rather too wide.
"""

import math
from dataclasses import dataclass

from costmodel.calibration import interval_ns


@dataclass(frozen=True, slots=True)
class Gain:
    """A share of the old step; between what shares it lies in four of five cases, None where times were measured."""

    share: float
    interval: tuple[float, float] | None


def gain(old_ns: int, new_ns: int, error: float | None) -> Gain:
    """Return what a step of `new_ns` gains over one of `old_ns`, by the mean relative error of either.

    The error of a ratio of two is that of one to the power of the root of two.
    """
    share = 1 - new_ns / old_ns
    if error is None:
        return Gain(share, None)
    low_ns, high_ns = interval_ns(new_ns, (1 + error) ** math.sqrt(2) - 1)
    return Gain(share, (1 - high_ns / old_ns, 1 - low_ns / old_ns))
