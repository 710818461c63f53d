"""Cuts of many lines into even stages at once: the least largest stage, found by bisection in arrays.

Stages are filled from the end of the line, so that the first stage, which holds most micro-batches, is the one that
takes what is left. Leaves out messages and memory.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_HALVINGS = 9
"""Steps of the bisection: they leave an error below a five-hundredth of one item."""


def even_stages(works: Floats, num_stages: Ints, speeds: Floats | None = None) -> Ints:
    """Return where each stage of each line begins.

    Parameters
    ----------
    works : array of float, lines x items
        What each item takes.
    num_stages : array of int, lines
        At least 1.
    speeds : array of float, lines x most stages, optional
        Speed of each stage's place; 1 by default.

    Returns
    -------
    array of int, lines x (most stages + 1)
        Row i holds the first item of each stage, rising; from its number of stages on the number of items. Stages may
        be empty where there are fewer items than stages.
    """
    by_number = np.argsort(-num_stages, kind="stable")
    begins = np.empty((len(works), int(num_stages.max()) + 1), dtype=np.int64)
    begins[by_number] = _even(works[by_number], num_stages[by_number], None if speeds is None else speeds[by_number])
    return begins


def _even(works: Floats, num_stages: Ints, speeds: Floats | None) -> Ints:
    """Cut lines of which none has more stages than the one before it."""
    most = int(num_stages.max())
    rates = np.ones((len(works), most)) if speeds is None else speeds
    rates = np.where(np.arange(most) < num_stages[:, None], rates, 0.0)
    totals = works.sum(axis=1)
    # an item that no place could take in less is not below the largest stage
    low = np.maximum(totals / rates.sum(axis=1), works.max(axis=1) / rates.max(axis=1))
    high = totals / rates.sum(axis=1) + works.max(axis=1) / np.where(rates > 0, rates, np.inf).min(axis=1)
    line = _Lines(works, totals)
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        fits = line.filled(middle, rates, num_stages)[:, 0] <= 0
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return line.filled(high, rates, num_stages)


class _Lines:
    """Prefix sums of many lines in one rising row, so that one look-up serves all."""

    def __init__(self, works: Floats, totals: Floats) -> None:
        count, self._num = works.shape
        scale = 1.0 / np.maximum(totals, 1.0)
        prefix = np.zeros((count, self._num + 1))
        np.cumsum(works * scale[:, None], axis=1, out=prefix[:, 1:])
        prefix[:, 1:] = np.minimum(prefix[:, 1:], 1.0)
        self._scale, self._prefix = scale, prefix
        self._base = 2.0 * np.arange(count)
        self._row = (prefix + self._base[:, None]).ravel()
        self._offset = np.arange(count) * (self._num + 1)

    def filled(self, largest: Floats, rates: Floats, num_stages: Ints) -> Ints:
        """Return where stages of at most `largest` begin, each as long as it may be, the last one first."""
        count, most = rates.shape
        begins = np.full((count, most + 1), self._num, dtype=np.int64)
        end = np.full(count, self._num, dtype=np.int64)
        room = largest * self._scale * (1 + 1e-9)
        rows = np.arange(count)
        lines = count - np.searchsorted(num_stages[::-1], np.arange(most), side="right")
        for stage in range(most - 1, -1, -1):
            few = slice(lines[stage])  # the lines that have this stage
            least = self._prefix[rows[few], end[few]] - room[few] * rates[few, stage]
            first = np.searchsorted(self._row, least + self._base[few], side="left") - self._offset[few]
            end[few] = np.minimum(np.maximum(first, 0), end[few])
            begins[few, stage] = end[few]
        return begins
