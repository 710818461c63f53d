"""The most that a stage has on the device beyond what it keeps of its micro-batches, while one of them runs.

Of each operator the profile knows what is alive beyond what it and those before it save (`working_bytes`). In a
backward what those behind it have saved is gone by then. Leaves out gradients of parameters, and what is received.
"""

from collections.abc import Sequence
from itertools import accumulate

from costmodel.stages.strategies.shared_sums import Item


class WorkspaceMemory:
    """Of operators of one configuration.

    Parameters
    ----------
    working : sequence of int
        Bytes of each operator.
    items : sequence of Item
        What operators keep when nothing is recomputed.
    """

    def __init__(self, working: Sequence[int], items: Sequence[Item]) -> None:
        own, known = [0] * len(working), set[object]()
        for position, key, size in items:
            if key not in known:
                known.add(key)
                own[position] += size
        self._working, self._own = working, own
        self._before = [0, *accumulate(own)]
        self._highest = [size + before for size, before in zip(working, self._before[1:], strict=True)]

    def over(self, operators: Sequence[int]) -> int:
        """Return the most bytes that a stage of these operators (rising) has beyond what they keep."""
        start, stop = operators[0], operators[-1] + 1
        if stop - start == len(operators):
            return max(0, max(self._highest[start:stop]) - self._before[stop])
        kept = most = 0
        for i in operators:
            kept += self._own[i]
            most = max(most, kept + self._working[i])
        return max(0, most - kept)
