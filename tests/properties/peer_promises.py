"""Other planners' problems by brute force, on small random instances; `benchmarks.reliability` tries more of them.

Shares no code with the solvers.
"""

import math
from itertools import product
from random import Random

from benchmarks.peer_problems.answer import INFEASIBLE, OPTIMAL, PeerAnswer
from benchmarks.peer_problems.contiguous_search import solve_contiguous
from benchmarks.peer_problems.pipedream import solve_pipedream
from benchmarks.peer_problems.piper import PiperSetting, solve_piper
from benchmarks.peer_problems.readers.dnn_partitioning import CostedTensor, LatencyInstance, LatencyNode
from benchmarks.peer_problems.readers.pipedream import LayerInstance, LayerNode
from benchmarks.peer_problems.readers.piper import Variant, VariantInstance

CLOSE = 1e-8


def failures(num_cases: int) -> list[str]:
    """Return a line for each problem whose answer is not that of brute force."""
    kinds = (contiguous_failure, piper_failure, pipedream_failure)
    found = (kinds[seed % 3](Random(seed)) for seed in range(num_cases))
    return [f"seed {seed}: {text}" for seed, text in enumerate(found) if text]


def contiguous_failure(rng: Random) -> str:
    """Compare contiguous devices, with colours, backward nodes and tight memory."""
    instance = random_latencies(rng)
    return _differs(solve_contiguous(instance, 3, instance.memory_bytes, 60.0), brute_contiguous(instance, 3))


def piper_failure(rng: Random) -> str:
    """Compare Piper's stages."""
    instance = random_variants(rng)
    found = solve_piper(instance, PiperSetting(4, instance.memory_bytes, instance.bandwidth, 4), 60.0)
    return _differs(found, brute_piper(instance, 4))


def pipedream_failure(rng: Random) -> str:
    """Compare PipeDream's stages."""
    instance, replicate = random_layers(rng), rng.random() < 0.5
    found = solve_pipedream(instance, 3, BANDWIDTH, replicate=replicate, seconds=60.0)
    return _differs(found, brute_pipedream(instance, 3, replicate=replicate))


def _differs(found: PeerAnswer, best: float) -> str:
    """Say how an answer differs from the best that there is: infinite where nothing fits."""
    if best == math.inf:
        return "" if found.status == INFEASIBLE else f"{found.objective} where nothing fits"
    if found.status != OPTIMAL or found.objective is None:
        return f"{found.status}, the best is {best}"
    close = abs(found.objective - best) <= CLOSE * best and found.lower_bound <= best * (1 + CLOSE)
    return "" if close else f"{found.objective} with the bound {found.lower_bound}, the best is {best}"


def random_edges(rng: Random, size: int) -> list[tuple[int, int]]:
    return [(a, b) for b in range(size) for a in range(b) if rng.random() < 0.4]


def random_latencies(rng: Random) -> LatencyInstance:
    """Some forward nodes, some backward ones behind them, some of one colour."""
    size, unit = rng.randint(2, 7), rng.choice([1.0, 0.25])
    forward = rng.randint(1, size)
    nodes = tuple(
        LatencyNode(
            f"n{i}", rng.randint(0, 9), unit * rng.randint(0, 5), i >= forward, rng.choice([None, 0, 1, i]), runs=True
        )
        for i in range(size)
    )
    readers: dict[int, list[int]] = {}
    for a, b in random_edges(rng, size):
        readers.setdefault(a, []).append(b)
    tensors = tuple(CostedTensor(a, tuple(row), rng.choice([0.5, 3, 20])) for a, row in readers.items())
    return LatencyInstance(nodes, tensors, 3, unit * rng.randint(4, 16))


def brute_contiguous(instance: LatencyInstance, num_devices: int) -> float:
    """Try every device of every node."""
    nodes, best = instance.nodes, math.inf
    coloured = {node.colour for node in nodes if not node.is_backward and node.colour is not None}

    def follows(i: int) -> bool:
        """Whether a backward node has a forward one of its colour."""
        return nodes[i].colour in coloured

    for device in product(range(num_devices), repeat=len(nodes)):
        if any(
            a.colour == b.colour is not None and x != y
            for a, x in zip(nodes, device, strict=True)
            for b, y in zip(nodes, device, strict=True)
        ):
            continue
        edges = [(t.producer, c) for t in instance.tensors for c in t.consumers]
        kinds = [(a, b, nodes[a].is_backward, nodes[b].is_backward) for a, b in edges]
        if any(not x and not y and device[a] > device[b] for a, b, x, y in kinds):
            continue
        if any(x and y and not (follows(a) and follows(b)) and device[a] < device[b] for a, b, x, y in kinds):
            continue
        loads, held = [0.0] * num_devices, [0.0] * num_devices
        for node, place in zip(nodes, device, strict=True):
            loads[place] += node.latency_ms
            held[place] += node.size_bytes
        for tensor in instance.tensors:
            places = {device[i] for i in (tensor.producer, *tensor.consumers)}
            for place in places if len(places) > 1 else ():
                loads[place] += tensor.cost_ms
        if max(held) <= instance.memory_bytes:
            best = min(best, max(loads))
    return best


def random_variants(rng: Random) -> VariantInstance:
    size = rng.randint(1, 5)
    edges = tuple((a, b, float(rng.randint(0, 40))) for a, b in random_edges(rng, size))

    def ways(node: int, degree: int) -> tuple[Variant, ...]:
        weights = float(rng.randint(0, 50))
        before = {a: float(rng.randint(0, 9)) for a, b, _ in edges if b == node}
        after = {b: float(rng.randint(0, 9)) for a, b, _ in edges if a == node}
        return tuple(
            Variant(name, rng.randint(1, 20) / degree, weights, rng.randint(0, 4), rng.randint(0, 4), before, after)
            for name in ("kept", "again")
        )

    variants = tuple({degree: ways(node, degree) for degree in (1, 2)} for node in range(size))
    return VariantInstance(tuple(map(str, range(size))), variants, edges, 4, float(rng.randint(3, 20)), 10.0, 4)


def brute_piper(instance: VariantInstance, num_devices: int) -> float:
    """Try every chain of stages with every way to run each of them."""
    size, best = len(instance.names), math.inf
    for places in product(range(size), repeat=size):
        used = sorted(set(places))
        if used != list(range(len(used))) or any(places[a] > places[b] for a, b, _ in instance.edges):
            continue
        for ways in product(product((1, 2, 4), (1, 2)), repeat=len(used)):
            if sum(d * t for d, t in ways) <= num_devices:
                best = min(best, max(_stage_s(instance, places, ways, stage) for stage in used))
    return best


def _stage_s(
    instance: VariantInstance, places: tuple[int, ...], ways: tuple[tuple[int, int], ...], stage: int
) -> float:
    """Return the least time of a stage over all choices of variants that fit."""
    replicas, tensor = ways[stage]
    in_flight = math.ceil(sum(d for d, _ in ways[stage:]) / replicas)
    nodes, best = [i for i, place in enumerate(places) if place == stage], math.inf
    for chosen in product(range(2), repeat=len(nodes)):
        rows = {node: instance.variants[node][tensor][c] for node, c in zip(nodes, chosen, strict=True)}
        if sum(v.per_microbatch_bytes * in_flight + v.static_bytes for v in rows.values()) > instance.memory_bytes:
            continue
        own = sum(v.time_s for v in rows.values())
        for a, b, size in instance.edges:
            if a in rows and b not in rows:
                own += 2 * (size + rows[a].sync_out.get(b, 0)) / instance.bandwidth
            if b in rows and a not in rows:
                own += 2 * (size + rows[b].sync_in.get(a, 0)) / instance.bandwidth
        weights = sum(v.parameter_bytes for v in rows.values())
        reduce_s = 4 * (replicas - 1) * weights / (replicas * instance.num_microbatches * instance.bandwidth)
        best = min(best, own / replicas + reduce_s)
    return best


BANDWIDTH = 1000.0


def random_layers(rng: Random) -> LayerInstance:
    """Some layers."""
    size = rng.randint(1, 6)
    nodes = tuple(
        LayerNode(f"n{i}", "", rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 30), rng.randint(0, 30))
        for i in range(size)
    )
    return LayerInstance(nodes, tuple(random_edges(rng, size)))


def brute_pipedream(instance: LayerInstance, num_devices: int, *, replicate: bool) -> float:
    """Try every chain of stages with every number of replicas."""
    size, best = len(instance.nodes), math.inf
    for places in product(range(size), repeat=size):
        count = len(set(places))
        if set(places) != set(range(count)) or any(places[a] > places[b] for a, b in instance.edges):
            continue
        for replicas in product(range(1, num_devices + 1 if replicate else 2), repeat=count):
            if sum(replicas) <= num_devices:
                best = min(best, max(_layer_s(instance, places, replicas, stage) for stage in range(count)))
    return best


def _layer_s(instance: LayerInstance, places: tuple[int, ...], replicas: tuple[int, ...], stage: int) -> float:
    rows = [node for node, place in zip(instance.nodes, places, strict=True) if place == stage]
    r = replicas[stage]
    work = sum(node.forward_ms + node.backward_ms for node in rows) / 1000
    own = (work + 4 * (r - 1) * sum(node.parameter_bytes for node in rows) / (BANDWIDTH * r)) / r

    def border_s(last: int) -> float:
        read = {a for a, b in instance.edges if places[a] <= last < places[b]}
        return 2 * sum(instance.nodes[a].activation_bytes for a in read) / (BANDWIDTH * r)

    return own if stage == 0 else max(own, border_s(stage - 1), border_s(stage))
