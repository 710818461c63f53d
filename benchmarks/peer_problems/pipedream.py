"""PipeDream's problem: layers in a chain of stages, some of them replicated; the slowest stage as fast as can be.

Narayanan et al., SOSP 2019, section 3.1, as their optimizer computes it: a stage with r replicas takes
(T + 4 (r - 1) W / B r) / r, with T its forwards and backwards and W its parameters' bytes; each but the first besides
2 a / (B r) at either boundary, with a the bytes of the layers before the boundary that are read after it. Leaves out
memory and several levels of links.
"""

import math

import networkx as nx

from benchmarks.peer_problems.answer import HEURISTIC, PeerAnswer, status_of
from benchmarks.peer_problems.readers.pipedream import LayerInstance
from planner.search.budget import Deadline
from planner.search.published.downsets import downsets, nodes_of, prefixes

MS = 1e-3


class _Stages:
    """What the differences of downsets take."""

    def __init__(self, instance: LayerInstance, bandwidth: float, sets: list[int]) -> None:
        self.bandwidth = bandwidth
        works = [(node.forward_ms + node.backward_ms) * MS for node in instance.nodes]
        after = [0] * len(works)
        for source, target in instance.edges:
            after[source] |= 1 << target
        self.works, self.weights, self.boundary_s = {}, {}, {}
        for mask in sets:
            inside = nodes_of(mask)
            self.works[mask] = math.fsum(works[node] for node in inside)
            self.weights[mask] = math.fsum(instance.nodes[node].parameter_bytes for node in inside)
            crossing = math.fsum(instance.nodes[node].activation_bytes for node in inside if after[node] & ~mask)
            self.boundary_s[mask] = 2 * crossing / bandwidth

    def time_s(self, first: int, last: int, replicas: int) -> float:
        """Return what the nodes of the second set without those of the first take on so many replicas."""
        work, weights = self.works[last] - self.works[first], self.weights[last] - self.weights[first]
        own = (work + 4 * (replicas - 1) * weights / (self.bandwidth * replicas)) / replicas
        if not first:
            return own
        return max(own, self.boundary_s[first] / replicas, self.boundary_s[last] / replicas)


def solve_pipedream(
    instance: LayerInstance, num_devices: int, bandwidth: float, *, replicate: bool, seconds: float
) -> PeerAnswer:
    """Minimise the slowest stage, in s, over all chains of stages of the graph.

    Parameters
    ----------
    bandwidth : float
        Bytes a second.
    replicate : bool
        Whether stages may have several replicas.
    """
    limits = Deadline(seconds)
    sets = downsets(len(instance.nodes), instance.edges)
    exact = sets is not None
    if sets is None:
        graph: nx.DiGraph[int] = nx.DiGraph(list(instance.edges))
        graph.add_nodes_from(range(len(instance.nodes)))
        sets = prefixes(nx.lexicographical_topological_sort(graph))
    stages = _Stages(instance, bandwidth, sets)
    best: dict[int, list[float]] = {0: [0.0] * (num_devices + 1)}
    chosen: dict[tuple[int, int], tuple[int, int]] = {}
    for place, last in enumerate(sets[1:], 1):
        row = [math.inf] * (num_devices + 1)
        for first in sets[:place]:
            if first & ~last:
                continue
            for replicas in range(1, num_devices + 1 if replicate else 2):
                time_s = stages.time_s(first, last, replicas)
                for used in range(replicas, num_devices + 1):
                    slowest = max(best[first][used - replicas], time_s)
                    if slowest < row[used]:
                        row[used] = slowest
                        chosen[last, used] = first, replicas
        best[last] = row
        if limits.expired:
            return PeerAnswer(None, 0.0, HEURISTIC, (), "the time limit ended the search before all stages were seen")
    objective = best[sets[-1]][num_devices]
    bound = objective if exact else _least(instance, num_devices)
    return PeerAnswer(objective, bound, status_of(objective, bound), _chain(instance, stages, chosen, num_devices))


def _least(instance: LayerInstance, num_devices: int) -> float:
    """Return all work, divided evenly: a bound for every way to cut."""
    return math.fsum((node.forward_ms + node.backward_ms) * MS for node in instance.nodes) / num_devices


def _chain(
    instance: LayerInstance, stages: _Stages, chosen: dict[tuple[int, int], tuple[int, int]], num_devices: int
) -> tuple[dict[str, object], ...]:
    rows: list[dict[str, object]] = []
    last, used = (1 << len(instance.nodes)) - 1, num_devices
    while last:
        first, replicas = chosen[last, used]
        names = [instance.nodes[node].name for node in nodes_of(last & ~first)]
        rows.append({"nodes": names, "replicas": replicas, "time_s": stages.time_s(first, last, replicas)})
        last, used = first, used - replicas
    return tuple(rows[::-1])
