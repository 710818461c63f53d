"""Equal towers of a graph: long branches of which one represents another, atom by atom.

Told by sizes: around atoms at the same place all tensors and parameters, up to the graph's ends, are as large, and they
take about as long (measured times are never the same). Leaves out short branches that are few: they hardly make a graph
wider.
"""

from collections.abc import Iterable, Sequence
from math import comb, prod

import networkx as nx

from planner.graph.atoms import Atoms

Rows = tuple[tuple[int, ...], ...]
"""Towers that are equal: atoms of each, those at equal positions represent each other."""

NEAR = 1.25
"""By how much the work of atoms at the same place may differ."""
LEAST_PART, MANY = 1 / 64, 4
"""Part of the graph's work that makes a branch a tower; number of equal branches that are towers at any length."""


def towers(atoms: Atoms, work_ns: Sequence[int], bytes_of: Sequence[int]) -> list[Rows]:
    """Return the groups of equal towers.

    Parameters
    ----------
    work_ns : sequence of int
        Forward and backward of each atom.
    bytes_of : sequence of int
        Bytes of each tensor of the graph.
    """
    colour = _colours(atoms, bytes_of)
    members: dict[tuple[int, int], list[int]] = {}
    for atom, each in enumerate(colour):
        members.setdefault(each, []).append(atom)
    alike = [len(members[each]) > 1 and _near([work_ns[atom] for atom in members[each]]) for each in colour]
    found: dict[frozenset[tuple[int, int]], list[list[int]]] = {}
    for row in joined(alike, atoms.edges):
        colours = frozenset(colour[atom] for atom in row)
        if len(colours) == len(row):
            found.setdefault(colours, []).append(row)
    least_ns = LEAST_PART * sum(work_ns)
    return [
        tuple(tuple(sorted(row, key=colour.__getitem__)) for row in rows)
        for rows in found.values()
        if len(rows) >= MANY or (len(rows) > 1 and sum(work_ns[atom] for atom in rows[0]) >= least_ns)
    ]


def num_downsets(groups: Iterable[Rows]) -> int:
    """Return how many sets of atoms of towers hold all that is before each of them, equal towers not told apart."""
    return prod(comb(len(rows[0]) + len(rows), len(rows)) for rows in groups)


def joined(alike: Sequence[bool], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the connected parts of the atoms that others are like."""
    union = nx.utils.UnionFind(atom for atom, is_alike in enumerate(alike) if is_alike)
    for u, v in edges:
        if alike[u] and alike[v]:
            union.union(u, v)
    parts: dict[int, list[int]] = {}
    for atom in filter(alike.__getitem__, range(len(alike))):
        parts.setdefault(union[atom], []).append(atom)
    return list(parts.values())


def _near(works: Sequence[int]) -> bool:
    return max(works) <= NEAR * min(works)


def _colours(atoms: Atoms, bytes_of: Sequence[int]) -> list[tuple[int, int]]:
    """Return a number of what is before each atom and one of what is behind: alike where all sizes to the ends are."""
    read: list[list[tuple[int, int]]] = [[] for _ in atoms.members]
    made: list[list[tuple[int, int]]] = [[] for _ in atoms.members]
    for flow in atoms.flows:
        for consumer in flow.consumers:
            read[consumer].append((flow.producer, bytes_of[flow.tensor]))
            made[flow.producer].append((consumer, bytes_of[flow.tensor]))
    everything = range(len(atoms))
    before = _numbered(atoms, read, everything)
    return list(zip(before, _numbered(atoms, made, reversed(everything)), strict=True))


def _numbered(atoms: Atoms, edges: Sequence[Sequence[tuple[int, int]]], order: Iterable[int]) -> list[int]:
    """Return a number of each atom by its edges: their sizes, and the numbers of the atoms at their other ends."""
    numbers: dict[object, int] = {}
    found = [0] * len(atoms)
    for atom in order:
        key = atoms.trained_bytes[atom], tuple(sorted((found[other], size) for other, size in edges[atom]))
        found[atom] = numbers.setdefault(key, len(numbers))
    return found
