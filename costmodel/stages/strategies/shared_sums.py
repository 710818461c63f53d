"""Sums over sets of operators in which what several operators share counts once.

Saved storages, parameters and gathered tensors are shared. A stage of consecutive operators is answered by
differences of prefix sums, any other set of operators by walking it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

_NOTHING: Mapping[object, int] = {}
Item = tuple[int, object, int]
"""Position of an operator, what it needs (equal keys are one thing), and its size."""


class SharedSums:
    """Answers "how much do these operators need together" for one list of items.

    Parameters
    ----------
    items : iterable of Item
        A key that has several sizes counts with its largest.
    num_operators : int
    own : sequence of int, optional
        What each operator needs for itself alone.
    """

    def __init__(self, items: Iterable[Item], num_operators: int, own: Sequence[int] = ()) -> None:
        needed: dict[int, dict[object, int]] = {}
        largest: dict[object, int] = {}
        uneven = False
        for position, key, size in items:
            needed.setdefault(position, {})[key] = size
            known = largest.setdefault(key, size)
            if known != size:
                largest[key], uneven = max(known, size), True
        if uneven:
            needed = {position: {key: largest[key] for key in row} for position, row in needed.items()}
        self.size_of: Mapping[object, int] = largest
        self.rows: Sequence[Mapping[object, int]] = [needed.get(i, _NOTHING) for i in range(num_operators)]
        self._own = own
        self._readers: dict[object, list[int]] = {}
        self._index(sorted(needed))

    def _index(self, needing: Sequence[int]) -> None:
        """Build the prefix sums: of sizes, and of repeats by their later and by their earlier reader."""
        sizes = list(self._own or (0,) * len(self.rows))
        later, earlier, spans = [0] * len(sizes), [0] * len(sizes), []
        for position in needing:
            for key, size in self.rows[position].items():
                sizes[position] += size
                readers = self._readers.setdefault(key, [])
                if readers:
                    later[position] += size
                    earlier[readers[-1]] += size
                    spans.append((position - readers[-1], readers[-1], position, size))
                readers.append(position)
        self._sizes, self._later, self._earlier = map(_prefix, (sizes, later, earlier))
        self._spans = sorted(spans, reverse=True)

    def over(self, operators: Sequence[int]) -> int:
        """Return the sum over operators at these positions (rising)."""
        if not operators:
            return 0
        start, stop = operators[0], operators[-1] + 1
        if stop - start != len(operators):
            own = sum(map(self._own.__getitem__, operators)) if self._own else 0
            if not self.size_of:
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
        return self._once(0)

    def at_last(self) -> list[int]:
        """Return what each operator needs that none after it does."""
        return self._once(-1)

    def _once(self, end: int) -> list[int]:
        found = list(self._own or (0,) * len(self.rows))
        for key, readers in self._readers.items():
            found[readers[end]] += self.size_of[key]
        return found

    def holds(self, operators: Sequence[int], key: object) -> bool:
        """Whether any of these operators needs `key`."""
        readers = self._readers.get(key, ())
        if not readers or not operators:
            return False
        if operators[-1] - operators[0] + 1 == len(operators):
            return any(operators[0] <= reader <= operators[-1] for reader in readers)
        return not set(operators).isdisjoint(readers)


def _prefix(values: Sequence[int]) -> list[int]:
    return list(accumulate(values, initial=0))
