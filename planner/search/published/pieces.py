"""Pieces of a graph: what lies between two of its downsets, and what a stage that holds it would take.

A downset holds, with each atom, all that lead to it; the prefixes of one order are downsets. Entry (i, j) of every
table is about the atoms of downset j that are not in downset i. Leaves out which pieces become stages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.graph.atoms import Apart, Flow

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces between some downsets.

    Attributes
    ----------
    members : array of shape (sets, atoms)
        Which atoms are in each downset; the first is empty, the last has all.
    """

    members: Bools

    @classmethod
    def along(cls, order: Sequence[int]) -> "Pieces":
        """Return those between the prefixes of an order."""
        members = np.zeros((len(order) + 1, len(order)), np.bool_)
        for place, atom in enumerate(order):
            members[place + 1 :, atom] = True
        return cls(members)

    @classmethod
    def between(cls, masks: Iterable[int], groups: Sequence[Sequence[int]]) -> "Pieces":
        """Return those between downsets of groups of atoms, given as bit masks."""
        masks = list(masks)
        members = np.zeros((len(masks), sum(map(len, groups))), np.bool_)
        for place, mask in enumerate(masks):
            for group, row in enumerate(groups):
                members[place, list(row)] = mask >> group & 1
        return cls(members)

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def inside(self) -> Bools:
        """Whether downset i is a part of downset j, and not all of it."""
        held = self.members.astype(np.float32)
        found: Bools = (held @ (1 - held).T == 0) & (held.sum(1)[:, None] < held.sum(1)[None, :])
        return found

    def sums(self, amounts: Sequence[float]) -> Floats:
        """Return the sum over each piece of what its atoms have."""
        upto = self.members @ np.asarray(amounts, np.float64)
        found: Floats = upto[None, :] - upto[:, None]
        return found

    def holds(self, atoms: Iterable[int]) -> Bools:
        """Whether each piece has any of the atoms."""
        count = self.members[:, list(atoms)].sum(1)
        found: Bools = count[None, :] > count[:, None]
        return found

    def received(self, flows: Iterable[Flow], sizes: Sequence[float]) -> tuple[Floats, Floats]:
        """Return what each piece gets from others, and what it sends: each tensor of `sizes` once."""
        into, out = np.zeros((2, len(self), len(self)))
        for flow in flows:
            made, readers = self.members[:, flow.producer], self.members[:, list(flow.consumers)].sum(1)
            reads = readers[None, :] > readers[:, None]
            into += sizes[flow.tensor] * (made[:, None] & reads)
            left = readers < len(flow.consumers)
            out += sizes[flow.tensor] * (~made[:, None] & (made & left)[None, :])
        return into, out

    def mixes(self, apart: Apart) -> Bools:
        """Whether each piece has atoms that are to be apart."""
        found = np.zeros((len(self), len(self)), np.bool_)
        for rows in apart:
            found |= sum((self.holds(row).astype(int) for row in rows), np.zeros(found.shape, int)) > 1
        return found

    def atoms(self, start: int, stop: int) -> list[int]:
        """Return the atoms of one piece."""
        return [int(atom) for atom in np.flatnonzero(self.members[stop] & ~self.members[start])]
