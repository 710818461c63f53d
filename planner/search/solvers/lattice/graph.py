"""A cut problem as its lattice: work, and what crosses, of each downset; edges along which paths are counted.

A path that a gradient comes back on goes along the edges with a gradient, any other along all; where backwards run in
halves none counts as coming back, for W may be the last of a stage. An edge with a longer way beside it is left out,
for that way meets more stages. Leaves out flows (`planner.search.solvers.lattice.flows`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.search.solvers.lattice.copies import Edge, Pattern
from planner.search.solvers.lattice.downsets import Downsets, Ints
from planner.search.solvers.relaxation.data import CutData

Floats = NDArray[np.float64]

WORK, PATH, AHEAD, CLOSING = range(4)
"""Columns of `Lattice.sums`: all of one micro-batch, without what is run again, F alone, and what ends a step."""
BACK, THERE = range(2)
"""Ways of a path: there and back, and there alone."""


class Lattice(NamedTuple):
    """What downsets hold and what crosses each, in the units of the cut problem.

    Attributes
    ----------
    sums : array of shape (downsets, 4)
    below, first : arrays
        `Downsets.below` and its rows.
    crossing, crossing_first : arrays
        Kinds of edges out of each downset, and the rows: ``crossing[crossing_first[d]:crossing_first[d + 1]]``, rising.
    counts : array
        How many edges of that kind.
    heads : array of shape (2, kinds)
        Longest path, by `BACK` or `THERE`, that ends with an edge; below 0 where it has no such way.
    num_stages, num_microbatches : int
    """

    sums: Floats
    below: Ints
    first: Ints
    crossing: Ints
    crossing_first: Ints
    counts: Ints
    heads: Floats
    num_stages: int
    num_microbatches: int


@dataclass(frozen=True)
class Kinds:
    """Edges that are alike, for both ways of a path.

    Attributes
    ----------
    members : list of list of Edge
    ways : array of shape (2, kinds)
        1 where a path of that way may take it.
    times : array of shape (2, kinds)
        What a message takes on that way: twice where it comes back.
    """

    members: list[list[Edge]]
    ways: Floats
    times: Floats


def kinds_of(data: CutData, pattern: Pattern) -> Kinds:
    """Return the kinds of edges of a cut problem."""
    crossings = {(c.producer, c.consumer): c for c in data.crossings}
    gradients = _reduced(data.num_atoms, [edge for edge, c in crossings.items() if c.gradient and not data.split])
    everywhere = set(data.precedence)
    rows: dict[tuple[int, int], list[Edge]] = {}
    for u, v in sorted(gradients | everywhere):
        rows.setdefault((pattern.class_of[u], pattern.class_of[v]), []).append((u, v))
    members = list(rows.values())
    level = [data.levels[crossings[row[0]].level if row[0] in crossings else 0] for row in members]
    ways = [[float(row[0] in each) for row in members] for each in (gradients, everywhere)]
    return Kinds(members, np.array(ways), np.array([[2.0 * time for time in level], level], float))


def _reduced(num_atoms: int, edges: Iterable[Edge]) -> set[Edge]:
    """Return the edges beside which no longer way leads."""
    after: list[list[int]] = [[] for _ in range(num_atoms)]
    for u, v in edges:
        after[u].append(v)
    reached = [0] * num_atoms
    kept: set[Edge] = set()
    for u in reversed(range(num_atoms)):  # atoms are listed in a topological order
        beyond = 0
        for v in after[u]:
            beyond |= reached[v]
        kept.update((u, v) for v in after[u] if not beyond >> v & 1)
        reached[u] = beyond
        for v in after[u]:
            reached[u] |= 1 << v
    return kept


def lattice_of(data: CutData, downsets: Downsets, kinds: Kinds) -> Lattice:
    """Return the arrays of a cut problem's downsets."""
    forward, backward, closing = (np.array(row, float) for row in (data.forward, data.backward, data.closing))
    again = np.array(data.again or (0,) * data.num_atoms, float)
    parts = np.stack([forward + backward + again, forward + backward, forward, closing], axis=1)
    crossing = np.zeros((len(downsets), len(kinds.members)), np.int64)
    for kind, row in enumerate(kinds.members):
        for u, v in row:
            crossing[:, kind] += downsets.holds[:, u] > downsets.holds[:, v]
    rows, columns = np.nonzero(crossing)
    first = np.searchsorted(rows, np.arange(len(downsets) + 1))
    return Lattice(
        downsets.holds @ parts,
        downsets.below,
        downsets.first,
        columns.astype(np.int64),
        first.astype(np.int64),
        crossing[rows, columns],
        np.array([_heads(kinds, way, part) for way, part in ((BACK, parts[:, PATH]), (THERE, parts[:, AHEAD]))]),
        data.num_stages,
        data.num_microbatches,
    )


def _heads(kinds: Kinds, way: int, takes: Floats) -> list[float]:
    """Return the longest path of atoms that ends with an edge of each kind."""
    into: list[list[int]] = [[] for _ in takes]
    for kind, row in enumerate(kinds.members):
        for u, v in row if kinds.ways[way, kind] else ():
            into[v].append(u)
    longest = np.array(takes)
    for atom, sources in enumerate(into):
        longest[atom] += max((longest[u] for u in sources), default=0.0)
    return [
        longest[row[0][0]] + kinds.times[way, kind] if kinds.ways[way, kind] else -1.0
        for kind, row in enumerate(kinds.members)
    ]
