"""Parts of a cut problem that are copies of each other, such as towers: they need not be told apart.

Any partition keeps its stages' work if the copies swap atoms so that, before each stage ends, the first copy has done
all that the second has, the second all that the third has, and so on: at every point as many copies have an atom as
before. So that much more precedence loses nothing, and far fewer downsets are left. Measured copies are never quite
the same: those that are nearly so may count as the least of them, which loses that much of a bound. Leaves out copies
of which one atom represents another of the same copy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.graph.towers import NEAR, joined
from planner.search.solvers.relaxation.data import CutData

Edge = tuple[int, int]
Copies = tuple[tuple[int, ...], ...]
"""Atoms of each copy; those at the same place represent each other."""


@dataclass(frozen=True)
class Pattern:
    """Atoms, edges and what of them is alike.

    Attributes
    ----------
    class_of : tuple of int
        Of each atom: those of one class represent each other.
    copies : tuple of Copies
    """

    class_of: tuple[int, ...]
    copies: tuple[Copies, ...]

    @property
    def precedence(self) -> list[Edge]:
        """Pairs of atoms of which the second is never done before the first, without loss."""
        return [
            (a, b) for rows in self.copies for one, other in pairwise(rows) for a, b in zip(one, other, strict=True)
        ]


def pattern_of(data: CutData, *, nearly: bool = False) -> Pattern:
    """Return which atoms of a cut problem represent each other, or nearly do."""
    edges, again = _edges(data), data.again or (0,) * data.num_atoms
    parts = list(zip(data.forward, data.backward, data.closing, again, strict=True))
    colour = _refined(_numbered(_near(_refined([0] * len(parts), edges), parts) if nearly else parts), edges)
    counts = [colour.count(c) for c in range(max(colour) + 1)]
    alike = [counts[c] > 1 for c in colour]
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for part in joined(alike, edges):
        ordered = tuple(sorted(part, key=colour.__getitem__))
        if len({colour[atom] for atom in part}) == len(part):
            found.setdefault(tuple(colour[atom] for atom in ordered), []).append(ordered)
    copies = tuple(rows for group in found.values() if len(rows := _same(group, edges)) > 1)
    class_of = list(range(data.num_atoms))
    for rows in copies:
        for row in rows[1:]:
            for first, atom in zip(rows[0], row, strict=True):
                class_of[atom] = first
    return Pattern(tuple(class_of), copies)


def _edges(data: CutData) -> dict[Edge, tuple[int, bool]]:
    """Return the level of each edge and whether a gradient comes back; one that only orders is below all levels."""
    found = dict.fromkeys(data.precedence, (-1, False))
    found.update({(c.producer, c.consumer): (c.level, c.gradient) for c in data.crossings})
    return found


def least_of_copies(data: CutData, pattern: Pattern) -> CutData:
    """Return the same problem with every atom no larger than any that it represents."""

    def least(values: Sequence[int]) -> tuple[int, ...]:
        known: dict[int, int] = {}
        for c, value in zip(pattern.class_of, values, strict=True):
            known[c] = min(value, known.get(c, value))
        return tuple(known[c] for c in pattern.class_of) if values else ()

    return replace(
        data,
        forward=least(data.forward),
        backward=least(data.backward),
        closing=least(data.closing),
        again=least(data.again) if data.again else (),
    )


def _near(colour: Sequence[int], parts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return for each atom its colour, and which of the groups of that colour with about as much work it is in."""
    groups, least = [0] * len(parts), [0] * (max(colour) + 1)
    number = 0
    for atom in sorted(range(len(parts)), key=lambda atom: (colour[atom], sum(parts[atom]))):
        work = sum(parts[atom])
        if least[colour[atom]] == 0 or work > NEAR * least[colour[atom]]:
            number, least[colour[atom]] = number + 1, work
        groups[atom] = number
    return list(zip(colour, groups, strict=True))


def _refined(colour: list[int], edges: dict[Edge, tuple[int, bool]]) -> list[int]:
    """Return colours that differ wherever those of atoms, or of what is around them, do (colour refinement)."""
    while True:
        rows: list[list[object]] = [[each] for each in colour]
        around: list[list[tuple[int, int, bool, int]]] = [[] for _ in rows]
        for (u, v), (level, gradient) in edges.items():
            around[u].append((1, level, gradient, colour[v]))
            around[v].append((0, level, gradient, colour[u]))
        finer = _numbered((*row, tuple(sorted(near))) for row, near in zip(rows, around, strict=True))
        if max(finer) == max(colour):
            return colour
        colour = finer


def _numbered(keys: Iterable[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _same(rows: Sequence[tuple[int, ...]], edges: dict[Edge, tuple[int, bool]]) -> Copies:
    """Return those rows whose edges, inside and to the same atoms outside, are those of the first."""

    def around(row: tuple[int, ...]) -> set[object]:
        place = {atom: ("inside", i) for i, atom in enumerate(row)}
        return {
            (place.get(u, u), place.get(v, v), label) for (u, v), label in edges.items() if u in place or v in place
        }

    first = around(rows[0])
    return tuple(row for row in rows if around(row) == first)
