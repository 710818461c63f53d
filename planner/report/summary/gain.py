"""What a plan gains over another one, with the interval that the error of their predictions leaves.

The two errors are taken as independent; what both have alike cancels, so that the interval is rather too wide.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gain:
    """A share of the old step; between what shares it lies in four of five cases, None where times were measured."""

    share: float
    interval: tuple[float, float] | None


def gain(old_ns: int, new_ns: int, step_interval: tuple[float, float] | None) -> Gain:
    """Return what a step of `new_ns` gains over one of `old_ns`.

    `step_interval` says between which multiples of either step four of five measured ones lie. The error of a ratio
    of two is that of one to the power of the root of two; a bias, which both have, cancels.
    """
    share = 1 - new_ns / old_ns
    if step_interval is None:
        return Gain(share, None)
    low, high = step_interval
    wide = (high / low) ** (1 / math.sqrt(2))
    return Gain(share, (1 - wide * (1 - share), 1 - (1 - share) / wide))
