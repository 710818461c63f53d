"""From operators to atoms: the indivisible pieces between which a search may cut.

An atom is one operator, with those that must share its stage: in-place operators and their producers,
what pins put together, and whatever such contraction makes cyclic. Nothing else is contracted, except that graphs
of more than `MOST_ATOMS` pieces keep only their best cut positions (`planner.graph.thinning`). Leaves out costs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from costmodel.model.graph import OperatorGraph

MOST_ATOMS = 160
"""Up to here every position between two atoms is a candidate cut."""


Partition = tuple[int, ...]
"""Stage of each atom; stages are numbered from 0 in a topological order of the stage graph."""
Apart = tuple[tuple[tuple[int, ...], ...], ...]
"""For each set of patterns that are to be apart, and each of its patterns, what it matches."""


class Flow(NamedTuple):
    """A tensor that crosses atoms: its position in the graph, the atom that makes it and those that read it."""

    tensor: int
    producer: int
    consumers: tuple[int, ...]


@dataclass(frozen=True)
class Atoms:
    """A graph's operators grouped into atoms, listed in a topological order.

    Attributes
    ----------
    graph : OperatorGraph
    members : tuple of tuple of int
        Positions of each atom's operators, rising.
    """

    graph: OperatorGraph
    members: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def atom_of(self) -> tuple[int, ...]:
        """Atom of each operator."""
        found = [0] * len(self.graph.operators)
        for atom, members in enumerate(self.members):
            for operator in members:
                found[operator] = atom
        return tuple(found)

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """Tensors that cross atoms, in the graph's order."""
        flows = []
        for position, tensor in enumerate(self.graph.tensors):
            producer = self.atom_of[self.graph.index[tensor.producer]]
            consumers = {self.atom_of[self.graph.index[name]] for name in tensor.consumers} - {producer}
            if consumers:
                flows.append(Flow(position, producer, tuple(sorted(consumers))))
        return tuple(flows)

    @cached_property
    def flow_ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For each tensor that crosses atoms and each reader of it: number of its flow, its producer, its reader."""
        rows = [(i, flow.producer, reader) for i, flow in enumerate(self.flows) for reader in flow.consumers]
        number, producer, reader = np.array(rows, np.int64).reshape(-1, 3).T
        return number, producer, reader

    @cached_property
    def trained_by(self) -> Mapping[str, int]:
        """The atom with which each trainable parameter counts: its first reader that has a gradient.

        A reader without gradient does not count: its stage may have no backward at all.
        """
        found: dict[str, int] = {}
        for position, operator in enumerate(self.graph.operators):
            for name in operator.parameters if operator.trainable else ():
                if self.graph.parameter_index[name].trainable:
                    found.setdefault(name, self.atom_of[position])
        return found

    @cached_property
    def trained_bytes(self) -> tuple[int, ...]:
        """Bytes of each atom's trainable parameters."""
        found = [0] * len(self)
        for name, atom in self.trained_by.items():
            found[atom] += self.graph.parameter_index[name].size_bytes
        return tuple(found)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Atoms that read an output of each atom, rising."""
        found: list[set[int]] = [set() for _ in self.members]
        for flow in self.flows:
            found[flow.producer].update(flow.consumers)
        return tuple(tuple(sorted(row)) for row in found)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of an atom and one that reads its output."""
        return tuple((source, target) for source, row in enumerate(self.successors) for target in row)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Atoms whose outputs each atom reads, rising."""
        return _reversed(self.successors)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """All atoms after each atom, as a bit mask."""
        after = [0] * len(self)
        for atom in reversed(range(len(self))):
            for successor in self.successors[atom]:
                after[atom] |= after[successor] | 1 << successor
        return tuple(after)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """All atoms before each atom, as a bit mask."""
        before = [0] * len(self)
        for atom in range(len(self)):
            for predecessor in self.predecessors[atom]:
                before[atom] |= before[predecessor] | 1 << predecessor
        return tuple(before)

    @cached_property
    def bottlenecks(self) -> tuple[int, ...]:
        """Bottleneck atoms: every other atom leads to them or comes from them."""
        everything = (1 << len(self)) - 1
        return tuple(a for a in range(len(self)) if self.ancestors[a] | self.descendants[a] | 1 << a == everything)

    @cached_property
    def gradient_bottlenecks(self) -> tuple[int, ...]:
        """Bottleneck atoms to which all atoms before them lead by tensors that carry a gradient."""
        before = [0] * len(self)
        carried: list[set[int]] = [set() for _ in self.members]
        for flow in self.flows:
            if self.graph.tensors[flow.tensor].gradient:
                for consumer in flow.consumers:
                    carried[consumer].add(flow.producer)
        for atom, sources in enumerate(carried):
            for source in sources:
                before[atom] |= before[source] | 1 << source
        return tuple(a for a in self.bottlenecks if before[a] == self.ancestors[a])

    @cached_property
    def reduction(self) -> tuple[tuple[int, ...], ...]:
        """Successors of each atom without those that another path reaches (the transitive reduction)."""
        kept = []
        for row in self.successors:
            reached = 0
            for successor in row:
                reached |= self.descendants[successor]
            kept.append(tuple(s for s in row if not reached >> s & 1))
        return tuple(kept)


def prepare(graph: OperatorGraph, together: Iterable[tuple[int, int]] = ()) -> Atoms:
    """Return the atoms of a graph: every cut that respects them can be run, and keeps the pairs of `together`."""
    return group(graph, [*_glued(graph), *together])


def group(graph: OperatorGraph, pairs: Iterable[tuple[int, int]]) -> Atoms:
    """Contract pairs of operators, then every cycle that this makes; list the groups in a topological order."""
    joined = nx.utils.UnionFind(range(len(graph.operators)))
    for first, second in pairs:
        joined.union(first, second)
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(joined[operator] for operator in range(len(graph.operators)))
    for operator, row in enumerate(graph.successors):
        quotient.add_edges_from((joined[operator], joined[s]) for s in row if joined[s] != joined[operator])
    condensed = nx.condensation(quotient)
    members: dict[int, list[int]] = {node: [] for node in condensed}
    for operator in range(len(graph.operators)):
        members[condensed.graph["mapping"][joined[operator]]].append(operator)
    order = nx.lexicographical_topological_sort(condensed, key=lambda node: members[node][0])
    return Atoms(graph, tuple(tuple(members[node]) for node in order))


def numbered(atoms: Atoms, groups: Sequence[int], *, as_named: bool = False) -> Partition | None:
    """Return the groups of a partition numbered from 0 in a topological order, or None when they form a cycle.

    Among groups that are ready, the one with the lowest atom comes first; `as_named`, the one with the lowest number.
    """
    names = dict.fromkeys(sorted(set(groups)) if as_named else groups)
    place = {group: 1 << i for i, group in enumerate(names)}  # groups in order of their lowest atom
    reads = dict.fromkeys(names, 0)
    for source, target in atoms.edges:
        if groups[source] != groups[target]:
            reads[groups[target]] |= place[groups[source]]
    number: dict[int, int] = {}
    done, left = 0, list(names)
    while left:
        chosen = next((group for group in left if not reads[group] & ~done), None)
        if chosen is None:
            return None
        number[chosen] = len(number)
        done |= place[chosen]
        left.remove(chosen)
    return tuple([number[group] for group in groups])


def _glued(graph: OperatorGraph) -> list[tuple[int, int]]:
    """Pair each in-place operator with the producer of what it changes.

    That is the input whose storage its own output has; where storages are not known, every input.
    """
    reads: dict[int, list[tuple[int, int]]] = {}
    made: dict[int, set[int]] = {}
    for tensor in graph.tensors:
        producer = graph.index[tensor.producer]
        made.setdefault(producer, set()).add(tensor.storage)
        for consumer in tensor.consumers:
            reads.setdefault(graph.index[consumer], []).append((producer, tensor.storage))
    pairs = []
    for position, operator in enumerate(graph.operators):
        if operator.in_place:
            inputs = reads.get(position, [])
            own = made.get(position, set()) - {-1}
            changed = [producer for producer, storage in inputs if storage in own]
            pairs += [(producer, position) for producer in changed or [p for p, _ in inputs]]
    return pairs


def _reversed(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in rows]
    for source, row in enumerate(rows):
        for target in row:
            found[target].append(source)
    return tuple(map(tuple, found))
