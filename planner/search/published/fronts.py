"""Fronts: what the first stages of what is planned ask of the stages before them, in micro-batches in flight.

A stage with r replicas of k micro-batches an action takes b = k r at once. As 1F1B on a graph of stages needs it
(GraphPipe, section 6), it keeps w micro-batches in flight: the largest over its followers x of w_x + b_x and
w_x - b_x + 2 b, at least b, rounded up to a multiple of b. So a front is two numbers, the largest w_x + b_x and the
largest w_x - b_x; less of both is never worse. Leaves out which stages there are.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NOTHING = 0
"""The front where nothing follows."""
UNKNOWN = -1


class Fronts:
    """Numbers the fronts that come up, and says what each asks of stages.

    Parameters
    ----------
    ways : sequence of sequence of int
        For each way to run a stage, what it takes at once with each number of replicas, rising.
    num_microbatches : int
        Of a step, in flight at most.

    Attributes
    ----------
    above, below : array
        The largest w + b, and w - b, of each front.
    actions : array of shape (fronts, ways, replicas)
        Actions that each replica of a stage before it keeps in flight.
    others : array of shape (fronts, ways, replicas)
        The next higher number of replicas (its position, one past the last for none) whose own front is not worse.
    """

    def __init__(self, ways: Sequence[Sequence[int]], num_microbatches: int) -> None:
        self.batches, self.most = np.array(ways, np.int64), num_microbatches
        self.size = 0
        self._number: dict[tuple[int, int], int] = {}
        self._merged: dict[tuple[int, int], int] = {}
        self.above = self.below = np.zeros(0, np.int64)
        self.actions = self.others = self._after = np.zeros((0, *self.batches.shape), np.int64)
        self._of(0, -2 * int(self.batches.max()))

    @property
    def room(self) -> int:
        """Fronts that there is room for."""
        return len(self.above)

    def after(self, fronts: Ints, way: int, replicas: Ints) -> Ints:
        """Return the fronts of stages put before some, run in one way on replicas given by position."""
        found: Ints = self._after[fronts, way, replicas]
        missing = found == UNKNOWN
        if missing.any():
            for front, place in {(int(f), int(r)) for f, r in zip(fronts[missing], replicas[missing], strict=True)}:
                batch = int(self.batches[way, place])
                kept = self._kept(front, batch)
                self._after[front, way, place] = self._of(kept + batch, kept - batch)
            found = self._after[fronts, way, replicas]
        return found

    def merged(self, one: int, other: int) -> int:
        """Return the front of two side by side."""
        key = one, other
        if key not in self._merged:
            ends = ((int(row[one]), int(row[other])) for row in (self.above, self.below))
            self._merged[key] = self._of(*map(max, ends))
        return self._merged[key]

    def best(self, fronts: Ints, devices: Ints) -> NDArray[np.bool_]:
        """Return which of some distinct fronts none beats that takes no more devices."""
        above, below = self.above[fronts], self.below[fronts]
        worse = devices[:, None] >= devices
        worse &= above[:, None] >= above
        worse &= below[:, None] >= below
        found: NDArray[np.bool_] = worse.sum(1) == 1
        return found

    def _kept(self, front: int, batch: int) -> int:
        need = max(batch, int(self.above[front]), int(self.below[front]) + 2 * batch)
        return -(-need // batch) * batch

    def _of(self, above: int, below: int) -> int:
        """Return the number of a front; all that keep every micro-batch in flight are one."""
        key = (self.most, self.most) if above >= self.most or below + 2 >= self.most else (above, below)
        if key not in self._number:
            self._number[key] = self.size
            self._add(*key)
        return self._number[key]

    def _add(self, above: int, below: int) -> None:
        if self.size == len(self.above):
            self._grow(max(64, self.size))
        front, batches = self.size, self.batches
        self.above[front], self.below[front] = above, below
        counts = -(-np.maximum(np.maximum(batches, above), below + 2 * batches) // batches)
        self.actions[front] = np.minimum(counts, -(-self.most // batches))
        self.others[front] = _others(counts * batches + batches, counts * batches - batches)
        self.size += 1

    def _grow(self, more: int) -> None:
        self.above, self.below = (np.append(row, np.zeros(more, np.int64)) for row in (self.above, self.below))
        empty = np.full((more, *self.batches.shape), UNKNOWN, np.int64)
        self.actions, self.others, self._after = (
            np.concatenate([rows, empty]) for rows in (self.actions, self.others, self._after)
        )


def _others(above: Ints, below: Ints) -> Ints:
    """Return, for each way and place of a row, the next place that is better in one of two numbers."""
    count = above.shape[1]
    better = (above[:, None, :] < above[:, :, None]) | (below[:, None, :] < below[:, :, None])
    better &= np.arange(count)[None, None, :] > np.arange(count)[None, :, None]
    found: Ints = np.where(better.any(2), better.argmax(2), count)
    return found
