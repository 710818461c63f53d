"""Topological orders to cut into segments.

Every convex partition with an acyclic quotient is a segmentation of some topological order, so several
orders are tried. Depth-first orders keep branches whole: from the sources a branch is followed until it
waits for another, from the sinks each join's inputs are finished one after the other. Both with heavy
branches first, light ones first, and at random. Leaves out breadth-first orders, which cut every branch.
"""

from collections.abc import Callable, Sequence
from random import Random

from planner.graph.atoms import Atoms

Order = tuple[int, ...]


def orders(atoms: Atoms, work_ns: Sequence[int], num_random: int, seed: int) -> list[Order]:
    """Return distinct topological orders, the most promising first.

    Parameters
    ----------
    work_ns : sequence of int
        Forward and backward of each atom.
    num_random : int
        Random depth-first orders, besides the four fixed ones.
    """
    above = [0] * len(atoms)
    below = [0] * len(atoms)
    for atom in range(len(atoms)):
        above[atom] = work_ns[atom] + max((above[p] for p in atoms.predecessors[atom]), default=0)
    for atom in reversed(range(len(atoms))):
        below[atom] = work_ns[atom] + max((below[s] for s in atoms.successors[atom]), default=0)
    found = [
        _from_sinks(atoms, lambda a: (-above[a], a)),
        _from_sources(atoms, lambda a: (-below[a], a)),
        _from_sinks(atoms, lambda a: (above[a], a)),
        _from_sources(atoms, lambda a: (below[a], a)),
    ]
    rng = Random(seed)  # noqa: S311 - a search, not a secret
    for i in range(num_random):
        rank = list(range(len(atoms)))
        rng.shuffle(rank)
        walk = _from_sinks if i % 2 == 0 else _from_sources
        found.append(walk(atoms, lambda a, rank=rank: (rank[a], a)))  # type: ignore[misc]
    return list(dict.fromkeys(found))


Key = Callable[[int], tuple[int, int]]


def _from_sources(atoms: Atoms, key: Key) -> Order:
    """Follow what has become ready last; among equals the smallest key."""
    waiting = [len(row) for row in atoms.predecessors]
    stack = sorted((a for a in range(len(atoms)) if not waiting[a]), key=key, reverse=True)
    order = []
    while stack:
        atom = stack.pop()
        order.append(atom)
        ready = []
        for successor in atoms.successors[atom]:
            waiting[successor] -= 1
            if not waiting[successor]:
                ready.append(successor)
        stack += sorted(ready, key=key, reverse=True)
    return tuple(order)


def _from_sinks(atoms: Atoms, key: Key) -> Order:
    """Finish what an atom reads, input by input (smallest key first), then the atom."""
    order: list[int] = []
    placed = [False] * len(atoms)
    sinks = (a for a in range(len(atoms)) if not atoms.successors[a])
    stack = sorted(sinks, key=key, reverse=True)
    while stack:
        atom = stack[-1]
        missing = [p for p in atoms.predecessors[atom] if not placed[p]]
        if missing:
            stack.append(min(missing, key=key))
            continue
        stack.pop()
        if not placed[atom]:
            placed[atom] = True
            order.append(atom)
    return tuple(order)
