"""The cut of one order into a fixed number of stages whose largest takes least, each stage on a device of its own pace.

Found by bisection: what fits under a bound is filled from the front. Leaves out what stages send, and all else that
only simulation knows.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def bottleneck_partition(loads: Sequence[Sequence[int]]) -> list[int] | None:
    """Return the stage of each item, or None where there are fewer items than stages.

    Parameters
    ----------
    loads : sequence of sequence of int
        For each stage what each item would take there, items in order.
    """
    if len(loads[0]) < len(loads):
        return None
    sums = [[0, *accumulate(row)] for row in loads]
    low, high = 0, max(row[-1] for row in sums)
    while low < high:
        middle = (low + high) // 2
        if _fill(sums, middle) is None:
            low = middle + 1
        else:
            high = middle
    return _fill(sums, high)


def _fill(sums: Sequence[Sequence[int]], most: int) -> list[int] | None:
    """Fill stages up to `most`, one item each at least; None when items are left over."""
    num_items, stages = len(sums[0]) - 1, len(sums)
    start, found = 0, []
    for stage, row in enumerate(sums):
        last = num_items - (stages - stage - 1)
        stop = bisect_right(row, row[start] + most, start, last + 1) - 1
        if stop == start:
            return None
        found += [stage] * (stop - start)
        start = stop
    return found if start == num_items else None
