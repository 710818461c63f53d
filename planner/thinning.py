"""Fewer candidate cuts for large graphs: the best position in each window of work of one order.

Cuts where few bytes cross, and where branches start or end, are nearly as good as all; costs stay fine, for
they are sums over all operators. Leaves out cuts that no thinned position allows: the plan's scope says
between how many atoms cuts were sought.
"""

from collections.abc import Sequence
from itertools import pairwise

from planner.prepare import MOST_ATOMS, Atoms, group
from planner.search.orders import orders


def thin(atoms: Atoms, work_ns: Sequence[int], bytes_of: Sequence[int], most: int = MOST_ATOMS) -> Atoms:
    """Return the atoms, joined along a depth-first order until at most `most` are left.

    Parameters
    ----------
    work_ns : sequence of int
        Forward and backward of each atom.
    bytes_of : sequence of int
        Bytes of each tensor of the graph.
    most : int
        Atoms wanted; more only when joining them would make cycles.
    """
    if len(atoms) <= most:
        return atoms
    order = orders(atoms, work_ns, 0, 0)[0]
    crossing = _crossing_bytes(atoms, order, bytes_of)
    kept = _best_cuts(atoms, order, work_ns, crossing, most)
    pairs = [
        (atoms.members[a][0], atoms.members[b][0])
        for position, (a, b) in enumerate(pairwise(order), 1)
        if position not in kept
    ]
    pairs += [(row[0], other) for row in atoms.members for other in row[1:]]
    return group(atoms.graph, pairs)


def _crossing_bytes(atoms: Atoms, order: Sequence[int], bytes_of: Sequence[int]) -> list[int]:
    """Bytes of the tensors that are made before each position and read after it."""
    place = {atom: position for position, atom in enumerate(order)}
    change = [0] * (len(order) + 1)
    for flow in atoms.flows:
        change[place[flow.producer] + 1] += bytes_of[flow.tensor]
        change[max(place[c] for c in flow.consumers) + 1] -= bytes_of[flow.tensor]
    total, crossing = 0, []
    for step in change:
        total += step
        crossing.append(total)
    return crossing


def _best_cuts(
    atoms: Atoms, order: Sequence[int], work_ns: Sequence[int], crossing: Sequence[int], most: int
) -> set[int]:
    """Return the positions to keep: branch ends while they take less than half, then the best of each window."""
    place = {atom: position for position, atom in enumerate(order)}
    breaks = [p for p in range(1, len(order)) if order[p - 1] not in atoms.predecessors[order[p]]]
    kept = set(breaks[: most // 2])
    total = sum(work_ns) or 1
    windows: dict[int, int] = {}
    done = 0
    for atom in order[:-1]:
        done += work_ns[atom]
        position = place[atom] + 1
        window = done * (most - 1 - len(kept)) // (total + 1)
        if window not in windows or crossing[position] < crossing[windows[window]]:
            windows[window] = position
    return kept | set(windows.values())
