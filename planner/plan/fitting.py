"""The word for whether a plan fits: surely, perhaps, or not.

`fits`: the upper bound of every rank's memory, and what is to stay free besides, is within its device. `may-not-fit`:
the estimate is. `does-not-fit`: not even that. Leaves out where estimates come from (`costmodel.stages.strategies`).
"""

from collections.abc import Sequence

from planner.plan.parts import DOES_NOT_FIT, FITS, FITTING, MAY_NOT_FIT
from planner.plan.provenance import margin_of, rank_limits
from planner.plan.whole import Plan

__all__ = ("DOES_NOT_FIT", "FITS", "FITTING", "MAY_NOT_FIT", "fitting", "fitting_of")


def fitting(peaks: Sequence[int], uppers: Sequence[int], limits: Sequence[int], margin_bytes: int = 0) -> str:
    """Return the word for ranks of these estimates and upper bounds; a limit of 0 is not known and binds nothing."""
    rows = [row for row in zip(peaks, uppers, limits, strict=True) if row[2]]
    if any(peak > limit for peak, _, limit in rows):
        return DOES_NOT_FIT
    return MAY_NOT_FIT if any(upper + margin_bytes > limit for _, upper, limit in rows) else FITS


def fitting_of(plan: Plan) -> str:
    """Return the word for a plan, on the devices and within the limit and margin that it was made for."""
    found = plan.prediction
    return fitting(found.peak_memory_bytes, found.peak_memory_upper_bytes, rank_limits(plan), margin_of(plan))
