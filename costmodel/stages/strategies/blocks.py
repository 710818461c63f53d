"""Blocks of a model: the operators of one of a list of layers that repeat, the unit of recompute and unsharding.

Operators outside of the layers are in no block. In a model without numbered modules all operators make one block. A
block whose operators do not follow each other counts as several.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import groupby

from costmodel.model.blocks import block_of
from costmodel.model.graph import Operator


def block_names(operators: Sequence[Operator]) -> tuple[str, ...]:
    """Return the block of each operator; empty for those in none."""
    names = tuple(block_of(operator.module) for operator in operators)
    return names if any(names) else ("all",) * len(names)


def block_spans(names: Sequence[str]) -> tuple[range, ...]:
    """Return the positions of each block, rising."""
    spans = []
    for name, row in groupby(range(len(names)), key=names.__getitem__):
        members = tuple(row)
        if name:
            spans.append(range(members[0], members[-1] + 1))
    return tuple(spans)


class BlockMost:
    """The most that any block needs, for stages that hold some blocks whole and some in part.

    Parameters
    ----------
    spans : tuple of range
    need : function
        What operators (rising positions) of one block need.
    """

    def __init__(self, spans: tuple[range, ...], need: Callable[[Sequence[int]], int]) -> None:
        self._spans, self._need = spans, need
        self._starts, self._stops = [span.start for span in spans], [span.stop for span in spans]
        self._known = [need(span) for span in spans]

    def over(self, operators: Sequence[int]) -> int:
        """Return the most among these operators' blocks; 0 where they are in none."""
        start, stop = operators[0], operators[-1] + 1
        if stop - start != len(operators):
            parts = ([i for i in operators if i in span] for span in self._spans)
            return max((self._need(part) for part in parts if part), default=0)
        first, last = bisect_left(self._starts, start), bisect_right(self._stops, stop)
        most = max(self._known[first:last], default=0)
        for index in {first - 1, last}:  # blocks of which the stage holds a part
            if 0 <= index < len(self._spans):
                part = range(max(start, self._spans[index].start), min(stop, self._spans[index].stop))
                most = max(most, self._need(part) if part else 0)
        return most


def num_blocks(spans: Sequence[range], operators: Sequence[int]) -> int:
    """Return how many blocks the operators touch, at least 1."""
    first, last = operators[0], operators[-1]
    begun = bisect_right(spans, last, key=lambda span: span.start)
    return max(1, begun - bisect_right(spans, first, key=lambda span: span.stop))
