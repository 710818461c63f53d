"""The downsets of a cut problem: sets of atoms with all that comes before each, between which stages lie.

Every cut into stages that some order runs is a chain of downsets from nothing to everything, and each stage is what one
has more than the one before. Leaves out which pairs of them may be a stage (`planner.search.solvers.lattice.kernels`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.search.solvers.lattice.copies import Edge, Pattern
from planner.search.solvers.relaxation.data import CutData

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

MOST = 60_000
"""Downsets that a lattice may have."""


@dataclass(frozen=True)
class Downsets:
    """All downsets, the empty one first, the whole one last, each after all that it contains.

    Attributes
    ----------
    holds : array of shape (downsets, atoms)
        1 where an atom is in.
    below, first : arrays
        Those with one atom less: ``below[first[d]:first[d + 1]]``.
    """

    holds: Bytes
    below: Ints
    first: Ints

    def __len__(self) -> int:
        return len(self.holds)


def downsets(num_atoms: int, edges: Sequence[Edge], most: int = MOST) -> Downsets | None:
    """Return the downsets of a graph; None where there are more than `most`."""
    needs = [0] * num_atoms
    for u, v in edges:
        needs[v] |= 1 << u
    number, layer = {0: 0}, [0]
    below: list[list[int]] = [[]]
    while layer:
        next_layer: list[int] = []
        for held in layer:
            for atom, need in enumerate(needs):
                bit = 1 << atom
                if held & bit or need & ~held:
                    continue
                more = held | bit
                if more not in number:
                    if len(number) == most:
                        return None
                    number[more] = len(number)
                    below.append([])
                    next_layer.append(more)
                below[number[more]].append(number[held])
        layer = next_layer
    width = -(-num_atoms // 8)
    packed = np.frombuffer(b"".join(held.to_bytes(width, "little") for held in number), np.uint8)
    holds = np.unpackbits(packed.reshape(-1, width), axis=1, count=num_atoms, bitorder="little")
    first = np.cumsum([0, *map(len, below)])
    return Downsets(holds, np.array([d for row in below for d in row], np.int64), first.astype(np.int64))


def of_cuts(data: CutData, pattern: Pattern, most: int = MOST) -> Downsets | None:
    """Return the downsets of a cut problem, copies merged; None where there are too many."""
    edges = [*data.precedence, *((c.producer, c.consumer) for c in data.crossings)]
    return downsets(data.num_atoms, [*edges, *pattern.precedence], most)
