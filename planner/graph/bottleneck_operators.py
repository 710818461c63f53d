"""The line that waists make: atoms to which all else leads or from which it comes, and gradients go back all the way.

Leaves out what bounds are made of it (`planner.search.bounders.pipeline_fill`).
"""

from collections.abc import Sequence
from functools import cached_property

from planner.graph.atoms import Atoms


class BottleneckOperators:
    """The waists of a graph, and its pieces: each waist with all up to the next one."""

    def __init__(self, atoms: Atoms) -> None:
        self.atoms = atoms

    @cached_property
    def operators(self) -> tuple[int, ...]:
        """Operators of the waists, rising."""
        return tuple(sorted(i for atom in self.atoms.gradient_waists for i in self.atoms.members[atom]))

    def has(self, operators: Sequence[int]) -> bool:
        """Whether operators are all of waists."""
        return self._set.issuperset(operators)

    @cached_property
    def _set(self) -> frozenset[int]:
        return frozenset(self.operators)

    @cached_property
    def pieces(self) -> tuple[tuple[int, ...], ...]:
        """Operators of each waist with all that lies between it and the next; in one stage if both are."""
        waists = self.atoms.gradient_waists
        found = []
        for waist, after in zip(waists, (*waists[1:], None), strict=True):
            between = self.atoms.descendants[waist] & (self.atoms.ancestors[after] if after is not None else 0)
            atoms = [waist, *(atom for atom in range(len(self.atoms)) if between >> atom & 1)]
            found.append(tuple(sorted(i for atom in atoms for i in self.atoms.members[atom])))
        return tuple(found)

    @cached_property
    def first(self) -> tuple[tuple[int, ...], ...]:
        """Operators of each piece's waist alone."""
        return tuple(tuple(i for i in piece if i in self._set) for piece in self.pieces)

    def way(self, piece: Sequence[int], times: Sequence[int]) -> int:
        """Return the longest way from the waist of a piece along which gradients go back; of each operator's time."""
        atoms = sorted({self.atoms.atom_of[i] for i in piece})
        found = dict.fromkeys(atoms[:1], 0)
        for atom in atoms:
            before = [found[source] for source in self._sources[atom] if source in found]
            if before or atom in found:
                found[atom] = max(before, default=0) + sum(times[i] for i in self.atoms.members[atom])
        return max(found.values())

    @cached_property
    def _sources(self) -> tuple[tuple[int, ...], ...]:
        """Atoms from which each atom reads a tensor that carries a gradient."""
        found: list[set[int]] = [set() for _ in self.atoms.members]
        for flow in self.atoms.flows:
            if self.atoms.graph.tensors[flow.tensor].gradient:
                for consumer in flow.consumers:
                    found[consumer].add(flow.producer)
        return tuple(tuple(sorted(row)) for row in found)
