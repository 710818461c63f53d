"""The chain of bottleneck operators: every other operator leads to them or comes from them, and so do gradients.

Leaves out what bounds are made of it (`planner.search.bounders.pipeline_fill`).
"""

from collections.abc import Sequence
from functools import cached_property

from planner.graph.atoms import Atoms


class BottleneckOperators:
    """The bottleneck operators of a graph, and its pieces: each bottleneck with all operators up to the next one."""

    def __init__(self, atoms: Atoms) -> None:
        self.atoms = atoms

    @cached_property
    def operators(self) -> tuple[int, ...]:
        """Operators of the bottlenecks, rising."""
        return tuple(sorted(i for atom in self.atoms.gradient_bottlenecks for i in self.atoms.members[atom]))

    def has(self, operators: Sequence[int]) -> bool:
        """Whether operators are all of bottlenecks."""
        return self._set.issuperset(operators)

    @cached_property
    def _set(self) -> frozenset[int]:
        return frozenset(self.operators)

    @cached_property
    def pieces(self) -> tuple[tuple[int, ...], ...]:
        """Operators of each bottleneck with all that lie between it and the next; one stage has them if it has both."""
        bottlenecks = self.atoms.gradient_bottlenecks
        found = []
        for bottleneck, after in zip(bottlenecks, [*bottlenecks[1:], None][: len(bottlenecks)], strict=True):
            between = self.atoms.descendants[bottleneck] & (self.atoms.ancestors[after] if after is not None else 0)
            atoms = [bottleneck, *(atom for atom in range(len(self.atoms)) if between >> atom & 1)]
            found.append(tuple(sorted(i for atom in atoms for i in self.atoms.members[atom])))
        return tuple(found)

    @cached_property
    def first(self) -> tuple[tuple[int, ...], ...]:
        """Operators of each piece's bottleneck alone."""
        return tuple(tuple(i for i in piece if i in self._set) for piece in self.pieces)

    def way(self, piece: Sequence[int], times: Sequence[int]) -> int:
        """Return the time of the longest path from a piece's bottleneck along which gradients go back."""
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
