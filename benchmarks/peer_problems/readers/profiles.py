"""Instances of other planners as profiles, for our own problem.

Piper's nodes count with their first variant on one device, a third of the time as forward; PipeDream's keep what they
put out for their backward. dnn-partitioning says of tensors how long they take, and of nodes how many bytes they hold:
tensors become what a link of a given bandwidth carries in that time, nodes parameters of those bytes. Leaves out the
peers' objectives (`benchmarks.peer_problems`).
"""

from pathlib import Path

import networkx as nx

from benchmarks.peer_problems.readers.dnn_groups import groups_of
from benchmarks.peer_problems.readers.dnn_partitioning import read_dnn_partitioning
from benchmarks.peer_problems.readers.pipedream import read_pipedream
from benchmarks.peer_problems.readers.piper import read_piper
from costmodel.importers.layers import LayerRow, profile_of
from costmodel.model.profile import Device, Profile

NS_A_MS, NS_A_S = 1e6, 1e9
FORWARD_PART = 1 / 3


def piper_profile(path: str | Path) -> Profile:
    """Read Piper's instance as a profile."""
    instance = read_piper(path)
    variants = [row[min(row)][0] for row in instance.variants]
    edges = [(source, target) for source, target, _ in instance.edges]
    sizes = {source: 0.0 for source, _, _ in instance.edges}
    for source, _, size in instance.edges:
        sizes[source] = max(sizes[source], size)
    layers = []
    for node, after in _in_order(len(variants), edges):
        found = variants[node]
        forward = found.time_s * FORWARD_PART
        layers.append(
            _layer(
                _name(instance.names[node], node), tuple(_name(instance.names[a], a) for a in after),
                (forward * NS_A_S, (found.time_s - forward) * NS_A_S),
                (found.parameter_bytes, sizes.get(node, 0.0), found.per_microbatch_bytes),
            )
        )  # fmt: skip
    device = Device("cuda", "an instance of Piper", round(instance.memory_bytes))
    return profile_of(layers, Path(path).stem, "piper", device)


def pipedream_profile(path: str | Path, memory_bytes: int) -> Profile:
    """Read PipeDream's graph as a profile."""
    instance = read_pipedream(path)
    layers = []
    for node, after in _in_order(len(instance.nodes), instance.edges):
        found = instance.nodes[node]
        layers.append(
            _layer(
                found.name, tuple(instance.nodes[a].name for a in after),
                (found.forward_ms * NS_A_MS, found.backward_ms * NS_A_MS),
                (found.parameter_bytes, found.activation_bytes, found.activation_bytes),
            )
        )  # fmt: skip
    return profile_of(layers, Path(path).stem, "pipedream", Device("cuda", "a graph of PipeDream", memory_bytes))


def dnn_partitioning_profile(path: str | Path, bandwidth: float) -> Profile:
    """Read dnn-partitioning's instance as a profile: what must share a device is one layer.

    Parameters
    ----------
    bandwidth : float
        Bytes a second of the link on which tensors take what the file says.
    """
    instance = read_dnn_partitioning(path)
    groups = groups_of(instance)
    after: list[set[int]] = [set() for _ in groups.members]
    sizes = [0.0] * groups.num_items
    for (first, *others), cost_ms in groups.tensors:
        sizes[first] += cost_ms * 1e-3 * bandwidth
        for other in others:
            after[max(first, other)].add(min(first, other))  # what backward nodes send follows the forward order
    layers = []
    for item, nodes in enumerate(groups.members):
        times = [0.0, 0.0]
        for node in nodes:
            times[instance.nodes[node].is_backward] += instance.nodes[node].latency_ms * NS_A_MS
        names = tuple(f"group{other}" for other in sorted(after[item]))
        layers.append(_layer(f"group{item}", names, (times[0], times[1]), (groups.sizes[item], sizes[item], 0.0)))
    device = Device("cuda", "an instance of dnn-partitioning", round(instance.memory_bytes))
    return profile_of(layers, Path(path).stem, "dnn-partitioning", device)


def _in_order(size: int, edges: list[tuple[int, int]] | tuple[tuple[int, int], ...]) -> list[tuple[int, list[int]]]:
    """Return nodes in an order in which data flows, each with those that it reads."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(size))
    graph.add_edges_from(edges)
    return [(node, sorted(graph.predecessors(node))) for node in nx.lexicographical_topological_sort(graph)]


def _name(text: str, node: int) -> str:
    return f"{text}.{node}"


def _layer(
    name: str, after: tuple[str, ...], times_ns: tuple[float, float], sizes: tuple[float, float, float]
) -> LayerRow:
    """Return a layer; half of its backward is the weight gradient's, where it has parameters."""
    forward_ns, backward_ns = map(round, times_ns)
    parameter_bytes, output_bytes, saved_bytes = map(round, sizes)
    weight_ns = backward_ns // 2 if parameter_bytes else 0
    return LayerRow(name, after, forward_ns, backward_ns, weight_ns, parameter_bytes, output_bytes, saved_bytes)
