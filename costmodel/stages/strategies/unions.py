"""Sums over sets of operators in which what several operators share counts once.

Kept storages, parameters and gathered tensors are shared. A stage of consecutive operators is answered by
differences of prefix sums, any other set of operators by walking it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Item = tuple[int, object, int]
"""Position of an operator, what it needs (equal keys are one thing), and its size."""


class UnionSums:
    """Answers "how much do these operators need together" for one list of items.

    Parameters
    ----------
    items : iterable of Item
        A key that stands with several sizes counts with its largest.
    num_operators : int
    own : sequence of int, optional
        What each operator needs for itself alone.
    """

    def __init__(self, items: Iterable[Item], num_operators: int, own: Sequence[int] = ()) -> None:
        positions, keys, sizes = (*zip(*items, strict=True),) or ((), (), ())
        self._own, self._count = own, num_operators
        self._number: dict[object, int] = {}
        for key in keys:
            self._number.setdefault(key, len(self._number))
        self._largest = np.zeros(len(self._number), np.int64)
        numbers, places = np.array(list(map(self._number.__getitem__, keys)), np.int64), np.array(positions, np.int64)
        np.maximum.at(self._largest, numbers, np.array(sizes, np.int64))
        order = np.lexsort((places, numbers))
        numbers, places = numbers[order], places[order]
        once = np.append(True, (numbers[1:] != numbers[:-1]) | (places[1:] != places[:-1]))[: len(numbers)]
        self._needed, self._readers = numbers[once], places[once]
        self._index()

    def _index(self) -> None:
        """Build the prefix sums: of sizes, and of repeats by their later and by their earlier reader."""
        sizes = np.array(self._own or (0,) * self._count, np.int64)
        later, earlier = np.zeros((2, self._count), np.int64)
        np.add.at(sizes, self._readers, self._largest[self._needed])
        again = np.flatnonzero(self._needed[1:] == self._needed[:-1])
        first, last, size = self._readers[again], self._readers[again + 1], self._largest[self._needed[again]]
        np.add.at(later, last, size)
        np.add.at(earlier, first, size)
        self._sizes, self._later, self._earlier = map(_prefix, (sizes, later, earlier))
        longest = np.argsort(first - last, kind="stable")
        spans = (last - first, first, last, size)
        self._spans = list(zip(*(column[longest].tolist() for column in spans), strict=True))

    @cached_property
    def size_of(self) -> Mapping[object, int]:
        """Size of each key."""
        return dict(zip(self._number, self._largest.tolist(), strict=True))

    @cached_property
    def rows(self) -> Sequence[Mapping[object, int]]:
        """What each operator needs that others may need, too."""
        found: list[dict[object, int]] = [{} for _ in range(self._count)]
        keys = list(self._number)
        sizes = self._largest[self._needed].tolist()
        for position, number, size in zip(self._readers.tolist(), self._needed.tolist(), sizes, strict=True):
            found[position][keys[number]] = size
        return found

    def over(self, operators: Sequence[int]) -> int:
        """Return the sum over operators at these positions (rising)."""
        if not operators:
            return 0
        start, stop = operators[0], operators[-1] + 1
        if stop - start != len(operators):
            own = sum(map(self._own.__getitem__, operators)) if self._own else 0
            if not self._number:
                return own
            shared: dict[object, int] = {}
            for i in operators:
                shared.update(self.rows[i])
            return sum(shared.values()) + own
        inside = self._later[stop] - self._earlier[start]
        for length, first, last, size in self._spans:
            if length <= stop - start:
                break
            if first < start and last >= stop:
                inside += size  # counted among the earlier ones, though its later reader is outside
        return self._sizes[stop] - self._sizes[start] - inside

    def alone(self) -> list[int]:
        """Return what each operator needs by itself."""
        return [after - before for before, after in pairwise(self._sizes)]

    def at_first(self) -> list[int]:
        """Return what each operator needs that none before it does."""
        return self._once("left")

    def at_last(self) -> list[int]:
        """Return what each operator needs that none after it does."""
        return self._once("right")

    def _once(self, side: Literal["left", "right"]) -> list[int]:
        found = np.array(self._own or (0,) * self._count, np.int64)
        ends = np.searchsorted(self._needed, np.arange(len(self._largest)), side) - (side == "right")
        np.add.at(found, self._readers[ends], self._largest)
        once: list[int] = found.tolist()
        return once

    def holds(self, operators: Sequence[int], key: object) -> bool:
        """Whether any of these operators needs `key`."""
        if key not in self._number or not operators:
            return False
        first, stop = np.searchsorted(self._needed, [self._number[key], self._number[key] + 1])
        readers = self._readers[first:stop].tolist()
        if operators[-1] - operators[0] + 1 == len(operators):
            return any(operators[0] <= reader <= operators[-1] for reader in readers)
        return not set(operators).isdisjoint(readers)


def _prefix(values: NDArray[np.int64]) -> list[int]:
    sums: list[int] = np.append(0, np.cumsum(values)).tolist()
    return sums
