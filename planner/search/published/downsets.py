"""The downsets of a graph: sets of nodes that hold, with each node, all that come before it.

Every stage of a chain of stages is the difference of two of them. Leaves out what stages cost.
"""

from collections.abc import Iterable

MOST = 20_000
"""Downsets up to which all are listed; pairs of them are gone through."""


def downsets(size: int, edges: Iterable[tuple[int, int]], most: int = MOST) -> list[int] | None:
    """Return all downsets as bit masks, the smaller first, or None where there are more than `most`."""
    before = [0] * size
    for source, target in edges:
        before[target] |= 1 << source
    found, latest = [0], {0}
    while latest:
        following: set[int] = set()
        for mask in latest:
            for node in range(size):
                if not mask >> node & 1 and not before[node] & ~mask:
                    following.add(mask | 1 << node)
            if len(found) + len(following) > most:
                return None
        found += sorted(following)
        latest = following
    return found


def prefixes(order: Iterable[int]) -> list[int]:
    """Return the downsets along one order."""
    found = [0]
    for node in order:
        found.append(found[-1] | 1 << node)
    return found


def nodes_of(mask: int) -> list[int]:
    """Return the nodes of a set."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
