"""The best cut of one order into so many contiguous pieces, the largest load counting: by dynamic programming.

A load is what a piece's items take, and what is paid for each tensor that has some of its nodes in the piece, but not
all. Leaves out which order.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def load_table(works: Sequence[float], tensors: Sequence[tuple[Sequence[int], float]]) -> Floats:
    """Return the load of each piece of an order: entry (i, j) is that of the items from i up to, not with, j.

    Parameters
    ----------
    works : sequence of float
        Of each item, in the order.
    tensors : sequence of (places, cost)
        Places in the order of a tensor's nodes.
    """
    size = len(works)
    steps = np.zeros((size + 2, size + 2))
    for places, cost in tensors:
        held, before = sorted(set(places)), 0
        for place in held:  # the first node of the tensor from i on is this one: pieces that reach it pay
            _add(steps, (before, place + 1), (place + 1, size + 1), cost)
            before = place + 1
        _add(steps, (0, held[0] + 1), (held[-1] + 1, size + 1), -cost)  # all of it inside
    paid = steps.cumsum(0).cumsum(1)[: size + 1, : size + 1]
    sums = np.concatenate([[0.0], np.cumsum(works)])
    loads: Floats = sums[None, :] - sums[:, None] + paid
    loads[np.tril_indices(size + 1)] = 0.0
    return loads.clip(0.0)


def _add(steps: Floats, rows: tuple[int, int], columns: tuple[int, int], amount: float) -> None:
    """Add an amount to a rectangle of the table whose sums over rows and columns count."""
    steps[rows[0], columns[0]] += amount
    steps[rows[1], columns[0]] -= amount
    steps[rows[0], columns[1]] -= amount
    steps[rows[1], columns[1]] += amount


def best_cuts(loads: Floats, num_pieces: int) -> tuple[float, list[int]]:
    """Return the least largest load of so many pieces, some perhaps empty, and where they end; infinite if none fit."""
    size = len(loads) - 1
    best, ends = loads[0].copy(), []
    upper = np.triu(np.ones_like(loads), 0) > 0
    table = np.where(upper, loads, np.inf)
    for _ in range(num_pieces - 1):
        worst = np.maximum(best[:, None], table)
        chosen = worst.argmin(0)
        ends.append(chosen)
        best = worst[chosen, np.arange(size + 1)]
    cuts, stop = [size], size
    for chosen in reversed(ends):
        stop = int(chosen[stop])
        cuts.append(stop)
    return float(best[size]), cuts[::-1]
