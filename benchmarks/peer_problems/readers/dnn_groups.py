"""dnn-partitioning with contiguous devices: the largest load of any device, as small as can be.

The problem is that of Tarnawski et al. (NeurIPS 2020): forward nodes of the devices form a chain of downsets; nodes of
one colour share a device, backward nodes with them; a colour without a forward node follows the mirrored order. A
device is loaded with its nodes' latencies and, for each tensor of which it has some nodes and not all, that tensor's
cost. Leaves out devices that are not accelerators.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from benchmarks.peer_problems.readers.dnn_partitioning import LatencyInstance


@dataclass(frozen=True)
class Groups:
    """What must share a device, as one item each, listed in an order in which data flows.

    Attributes
    ----------
    members : tuple of tuple of int
        Nodes of each item.
    works, sizes : tuple of float
        Latency in ms and bytes of each item.
    arcs : tuple of (int, int)
        Items that must not stand on a later device than others.
    tensors : tuple of (items, cost)
        Those between items, the producer's first.
    """

    members: tuple[tuple[int, ...], ...]
    works: tuple[float, ...]
    sizes: tuple[float, ...]
    arcs: tuple[tuple[int, int], ...]
    tensors: tuple[tuple[tuple[int, ...], float], ...]

    @cached_property
    def num_items(self) -> int:
        """How many items there are."""
        return len(self.members)

    def load_of(self, items: Iterable[int]) -> float:
        """Return the load of a device with these items."""
        inside = set(items)
        paid = (cost for row, cost in self.tensors if 0 < len(inside.intersection(row)) < len(row))
        return sum(self.works[item] for item in inside) + sum(paid)

    def objective(self, device: Sequence[int]) -> float:
        """Return the largest load, given the device of each item."""
        rows: dict[int, list[int]] = {}
        for item, place in enumerate(device):
            rows.setdefault(place, []).append(item)
        return max(map(self.load_of, rows.values()))


def groups_of(instance: LatencyInstance, more: Iterable[tuple[int, int]] = ()) -> Groups:
    """Contract colours, pairs of nodes that are to share a device, and every cycle that this makes."""
    joined = nx.utils.UnionFind(range(len(instance.nodes)))
    first: dict[int, int] = {}
    for position, node in enumerate(instance.nodes):
        if node.colour is not None:
            joined.union(first.setdefault(node.colour, position), position)
    for a, b in more:
        joined.union(a, b)
    led = {node.colour for node in instance.nodes if not node.is_backward and node.colour is not None}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(joined[i] for i in range(len(instance.nodes)))
    for tensor in instance.tensors:
        for consumer in tensor.consumers:
            a, b = joined[tensor.producer], joined[consumer]
            backward = [instance.nodes[i].is_backward for i in (tensor.producer, consumer)]
            if not any(backward):
                graph.add_edge(a, b)
            elif all(backward) and not {instance.nodes[i].colour for i in (tensor.producer, consumer)} <= led:
                graph.add_edge(b, a)  # the mirrored order, where one of them has no forward node to follow
    graph.remove_edges_from([(a, b) for a, b in graph.edges if a == b])
    condensed = nx.condensation(graph)
    at = {i: condensed.graph["mapping"][joined[i]] for i in range(len(instance.nodes))}
    return _listed(instance, condensed, at)


def _listed(instance: LatencyInstance, condensed: "nx.DiGraph[int]", at: dict[int, int]) -> Groups:
    rows: dict[int, list[int]] = {name: [] for name in condensed}
    for position, name in at.items():
        rows[name].append(position)
    order = list(nx.lexicographical_topological_sort(condensed, key=lambda name: min(rows[name])))
    place = {name: i for i, name in enumerate(order)}
    item = {position: place[name] for position, name in at.items()}
    tensors = []
    for tensor in instance.tensors:
        held = tuple(dict.fromkeys(item[i] for i in (tensor.producer, *tensor.consumers)))
        if len(held) > 1 and tensor.cost_ms > 0:
            tensors.append((held, tensor.cost_ms))
    return Groups(
        tuple(tuple(rows[name]) for name in order),
        tuple(sum(instance.nodes[i].latency_ms for i in rows[name]) for name in order),
        tuple(sum(instance.nodes[i].size_bytes for i in rows[name]) for name in order),
        tuple((place[a], place[b]) for a, b in nx.transitive_reduction(condensed).edges),
        tuple(tensors),
    )
