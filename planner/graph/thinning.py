"""Fewer candidate cuts for large graphs: positions of one order that split its work finely, where few bytes cross.

They are nearly as good as all positions, and costs stay fine, for they are sums over all operators. Segments that no
tensor joins (the end of one branch and the start of the next) are joined last of all, for that would make one branch
wait for another. Positions at the same place of equal towers go together, and their ends last: towers stay equal, so
that a bound need not tell them apart (`planner.search.solvers.lattice.copies`). Leaves out cuts at other positions:
the scope of a plan says between how many atoms cuts were sought.
"""

import heapq
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise

from costmodel.stages.strategies.blocks import block_names
from planner.graph.atoms import MOST_ATOMS, Apart, Atoms, group
from planner.graph.topological_orders import orders
from planner.graph.towers import Rows, towers


def thin(
    atoms: Atoms, work_ns: Sequence[int], bytes_of: Sequence[int], most: int = MOST_ATOMS, apart: Apart = ()
) -> Atoms:
    """Return the atoms, joined along a depth-first order until at most `most` are left.

    Parameters
    ----------
    work_ns : sequence of int
        Forward and backward of each atom.
    bytes_of : sequence of int
        Bytes of each tensor of the graph.
    most : int
        Atoms wanted; more when joining them would make cycles, or join what pins keep apart.
    apart : tuple
        Atoms that pins keep apart (`planner.question.pins`).
    """
    if len(atoms) <= most:
        return atoms
    order = orders(atoms, work_ns, 0, 0)[0]
    crossing = _crossing_bytes(atoms, order, bytes_of)
    line = _Segments(atoms, order, work_ns)
    for alike in (_alike(order, towers(atoms, work_ns, bytes_of)), {place: [place] for place in range(1, len(order))}):
        _join(line, crossing, alike, most)
    kept = line.kept | _between_layers(atoms, order, most)
    kept |= _between_apart(order, kept, apart)
    pairs = [
        (atoms.members[a][0], atoms.members[b][0])
        for position, (a, b) in enumerate(pairwise(order), 1)
        if position not in kept
    ]
    pairs += [(row[0], other) for row in atoms.members for other in row[1:]]
    return group(atoms.graph, pairs)


def _between_layers(atoms: Atoms, order: Sequence[int], most: int) -> set[int]:
    """Return the positions at which a layer begins or ends, unless there are too many: people cut there by hand."""
    names = block_names(atoms.graph.operators)
    held = [names[atoms.members[atom][0]] for atom in order]
    found = {position for position in range(1, len(order)) if held[position] != held[position - 1]}
    return found if len(found) <= most else set()


def _between_apart(order: Sequence[int], kept: Container[int], apart: Apart) -> set[int]:
    """Return positions that are needed besides those kept, lest a segment holds atoms that are to be apart."""
    pattern_of = [{atom: number for number, row in enumerate(rows) for atom in row} for rows in apart]
    found: set[int] = set()
    held: dict[int, int] = {}
    for position, atom in enumerate(order):
        own = {group: row[atom] for group, row in enumerate(pattern_of) if atom in row}
        clash = any(held.get(group, number) != number for group, number in own.items())
        if clash:
            found.add(position)
        held = own if clash or position in kept else held | own
    return found


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


def _alike(order: Sequence[int], groups: Iterable[Rows]) -> dict[int, list[int]]:
    """Return positions, each with those at the same place of equal towers; ends of towers are not among them."""
    row_of = {atom: row for rows in groups for row in rows for atom in row}
    first_of = {atom: rows[0][i] for rows in groups for row in rows for i, atom in enumerate(row)}
    found: dict[tuple[int, int], list[int]] = {}
    key_of: dict[int, tuple[int, int]] = {}
    for position, (a, b) in enumerate(pairwise(order), 1):
        if row_of.get(a) == row_of.get(b):
            key_of[position] = first_of.get(a, a), first_of.get(b, b)
            found.setdefault(key_of[position], []).append(position)
    return {position: found[key] for position, key in key_of.items()}


def _join(line: "_Segments", crossing: Sequence[int], alike: Mapping[int, Sequence[int]], most: int) -> None:
    """Join two neighbours, and all pairs like them, until at most `most` segments are left.

    First such as a tensor joins, that make a segment of the least order of magnitude of work, and of these the ones
    between which most bytes cross.
    """
    heap = [(line.cost(position), -crossing[position], position) for position in alike if position in line.kept]
    heapq.heapify(heap)
    while len(line.kept) - 1 > most and heap:
        cost, _, position = heapq.heappop(heap)
        if position not in line.kept or cost != line.cost(position):
            continue  # a neighbour has gone since; its new cost is in the heap
        for other in alike[position]:
            for neighbour in line.join(other):
                if neighbour in alike:
                    heapq.heappush(heap, (line.cost(neighbour), -crossing[neighbour], neighbour))


class _Segments:
    """The segments of an order between the positions that are kept."""

    def __init__(self, atoms: Atoms, order: Sequence[int], work_ns: Sequence[int]) -> None:
        place = {atom: position for position, atom in enumerate(order)}
        self._reads = [[place[p] for p in atoms.predecessors[atom]] for atom in order]
        self._work_ns = [0]
        for atom in order:
            self._work_ns.append(self._work_ns[-1] + work_ns[atom])
        self._before = list(range(-1, len(order)))
        self._after = list(range(1, len(order) + 2))
        self.kept = set(range(len(order) + 1))

    def cost(self, position: int) -> tuple[bool, int]:
        """Whether no tensor joins the two segments at a position, and the magnitude of their work."""
        left, right = self._before[position], self._after[position]
        apart = not any(left <= p < position for i in range(position, right) for p in self._reads[i])
        return apart, (self._work_ns[right] - self._work_ns[left]).bit_length()

    def join(self, position: int) -> tuple[int, int]:
        """Drop a position; return its neighbours."""
        self.kept.remove(position)
        left, right = self._before[position], self._after[position]
        self._after[left], self._before[right] = right, left
        return left, right
