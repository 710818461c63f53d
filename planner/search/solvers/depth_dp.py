"""The cuts of a line into stages whose memory depends on how many micro-batches are in flight at each.

Labels run from the sink, where one micro-batch is in flight, so that the state (stages behind, cut) knows the depth of
every stage, and a stage that does not fit in any way to run it is simply not there. A label holds X, the largest
(m - 1) t + c of its stages, and S, the sum of t and of messages there and back; a step takes about X + S. Of two labels
of a state the one that is no larger in both counts. Leaves out what stages hold, which the caller knows
(`planner.search.space.segment_prices`), stages that do not follow each other, and several stages a place.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.search.space.even_stages import Floats, Ints

MOST_LABELS = 24
"""Labels kept of a state, those of the least X + S."""


class _Labels(NamedTuple):
    """Labels of all states with as many stages behind, one column a label: its cut, X, S, and the label behind it."""

    cut: Ints
    largest: Floats
    total: Floats
    behind: Ints


def cuts_by_depth(
    works_ns: Floats, closing_ns: Floats, messages_ns: Floats, num_microbatches: int, most_ns: float, number: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Return the best cuts with their estimates, the best first.

    Parameters
    ----------
    works_ns : array, stages x positions x positions
        What each stage takes of a micro-batch that begins at one position and ends before another, the way to run it
        that is fastest of those that fit; infinite where none does.
    closing_ns : array of the same shape
        What each adds once a step.
    messages_ns : array, (stages - 1) x positions
        What messages between a stage and the next take there and back where they are cut at a position.
    num_microbatches : int
    most_ns : float
        Estimates that are not below it do not count.
    number : int
        Cuts wanted, at most.

    Returns
    -------
    list of (float, tuple of int)
        Estimate, and the position at which each stage begins.
    """
    num_stages, size, _ = works_ns.shape
    if num_stages >= size:
        return []  # more stages than pieces
    end = np.array([size - 1])
    levels = [_Labels(end, np.zeros(1), np.zeros(1), np.array([-1]))]
    for stage in range(num_stages - 1, -1, -1):
        behind = levels[-1]
        work, closing = works_ns[stage][:, behind.cut], closing_ns[stage][:, behind.cut]
        message = messages_ns[stage][behind.cut] if stage < num_stages - 1 else np.zeros(len(behind.cut))
        largest = np.maximum(behind.largest, (num_microbatches - 1) * work + closing)
        total = behind.total + work + message
        wanted = range(1) if stage == 0 else range(stage, size - 1)
        rows = [_undominated(largest[first], total[first], most_ns, first) for first in wanted]
        levels.append(_Labels(*map(np.concatenate, zip(*rows, strict=True))))
    last = levels[-1]
    order = np.argsort(last.largest + last.total, kind="stable")[:number].tolist()
    return [(float(last.largest[i] + last.total[i]), _begins(levels, i)) for i in order]


def _undominated(largest: Floats, total: Floats, most_ns: float, first: int) -> tuple[Ints, Floats, Floats, Ints]:
    """Return the labels of one state that no other of its labels is better than, as columns."""
    open_ones = np.flatnonzero(largest + total < most_ns)
    order = open_ones[np.lexsort((total[open_ones], largest[open_ones]))]
    least = np.minimum.accumulate(total[order])
    better = np.concatenate([[True], least[1:] < least[:-1]])[: len(order)]
    kept = order[better]
    kept = kept[np.argsort(largest[kept] + total[kept], kind="stable")[:MOST_LABELS]]
    return np.full(len(kept), first), largest[kept], total[kept], kept


def _begins(levels: Sequence[_Labels], label: int) -> tuple[int, ...]:
    found = []
    for level in reversed(levels[1:]):
        found.append(int(level.cut[label]))
        label = int(level.behind[label])
    return tuple(found)
