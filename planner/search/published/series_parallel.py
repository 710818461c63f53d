"""A graph as a tree of parts: one after the other (series), side by side (parallel), or as a line.

Atoms side by side are those of which neither leads to the other, by any path: what a transitive reduction leaves out
does not count, and several sources are a parallel part at the start, as a virtual source would make them. A part that
can be divided neither way (it holds four atoms of which a leads to c, and b to c and d, or a bridge) is treated as a
line: its atoms one after the other in a depth-first topological order, its branches and the series in them given up.
That is the smallest such part; what encloses it is divided as usual. Leaves out costs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TreePart:
    """A part of a graph.

    Attributes
    ----------
    kind : str
    atoms : tuple of int
        In the order in which they were given.
    children : tuple of TreePart
        In series and lines, each leads to the next or is put before it; none for an atom.
    """

    kind: Literal["atom", "series", "parallel", "line"]
    atoms: tuple[int, ...]
    children: tuple["TreePart", ...] = ()

    @property
    def num_in_lines(self) -> int:
        """Atoms that neither series nor parallel parts reach, which are treated as lines."""
        return len(self.atoms) if self.kind == "line" else sum(child.num_in_lines for child in self.children)

    @property
    def divisible(self) -> "Iterator[TreePart]":
        """Itself and all parts below it, but for atoms."""
        if self.children:
            yield self
            for child in self.children:
                yield from child.divisible


def decompose(successors: Sequence[Sequence[int]], order: Sequence[int]) -> TreePart:
    """Return the tree of a graph without cycles; of a single atom, a series of it.

    Parameters
    ----------
    successors : sequence of sequence of int
        Of each atom.
    order : sequence of int
        A topological order, depth-first for good lines.
    """
    after = [0] * len(order)
    for atom in reversed(order):
        for successor in successors[atom]:
            after[atom] |= after[successor] | 1 << successor
    related = list(after)
    for atom in order:
        for other in order:
            related[other] |= (after[atom] >> other & 1) << atom
    found = _part(tuple(order), related)
    return found if found.children else TreePart("series", found.atoms, (found,))


def _part(atoms: tuple[int, ...], related: Sequence[int]) -> TreePart:
    """Return the part that some atoms make; `related` has, for each, those that it leads to or comes from."""
    if len(atoms) == 1:
        return TreePart("atom", atoms)
    branches = _joined(atoms, related)
    if len(branches) > 1:
        return TreePart("parallel", atoms, tuple(_part(row, related) for row in branches))
    steps = _joined(atoms, [~mask for mask in related])
    if len(steps) > 1:
        return TreePart("series", atoms, tuple(_part(row, related) for row in steps))
    return TreePart("line", atoms, tuple(TreePart("atom", (atom,)) for atom in atoms))


def _joined(atoms: tuple[int, ...], neighbours: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the connected groups of atoms, in the order of their first ones."""
    left, groups = sum(1 << atom for atom in atoms), []
    for atom in atoms:
        if left >> atom & 1:
            group, grown = 0, 1 << atom
            while grown:
                low = grown & -grown
                group |= low
                grown = (grown | neighbours[low.bit_length() - 1] & left) & ~group
            left &= ~group
            groups.append(tuple(each for each in atoms if group >> each & 1))
    return groups
