"""Other planners' problems: equal to brute force under their own objectives, and one clear error for a broken file."""

import json
import math
from itertools import pairwise, product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InvalidInput
from costmodel.importers.dnn_partitioning import CostedTensor, LatencyInstance, LatencyNode, read_dnn_partitioning
from costmodel.importers.pipedream import LayerInstance, LayerNode, read_pipedream
from costmodel.importers.piper import Variant, VariantInstance, read_piper
from planner.commands import main
from planner.search.peers.answer import INFEASIBLE, OPTIMAL
from planner.search.peers.contiguous_search import solve_contiguous
from planner.search.peers.pipedream import solve_pipedream
from planner.search.peers.piper import PiperSetting, solve_piper
from tests.published_data import folder

seeds = st.integers(0, 1 << 40)


def random_edges(rng: Random, size: int) -> list[tuple[int, int]]:
    return [(a, b) for b in range(size) for a in range(b) if rng.random() < 0.4]


def random_latencies(rng: Random) -> LatencyInstance:
    """Some forward nodes, some backward ones behind them, some of one colour."""
    size = rng.randint(2, 7)
    forward = rng.randint(1, size)
    nodes = tuple(
        LatencyNode(f"n{i}", rng.randint(0, 9), rng.randint(0, 5), i >= forward, rng.choice([None, 0, 1, i]), runs=True)
        for i in range(size)
    )
    readers: dict[int, list[int]] = {}
    for a, b in random_edges(rng, size):
        readers.setdefault(a, []).append(b)
    tensors = tuple(CostedTensor(a, tuple(row), rng.choice([0.5, 3, 20])) for a, row in readers.items())
    return LatencyInstance(nodes, tensors, 3, rng.randint(4, 16))


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


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_contiguous_devices_are_cut_as_well_as_by_brute_force(seed: int) -> None:
    instance = random_latencies(Random(seed))
    found, best = solve_contiguous(instance, 3, instance.memory_bytes, 60.0), brute_contiguous(instance, 3)
    if best == math.inf:
        assert found.status == INFEASIBLE
        return
    assert found.status == OPTIMAL
    assert found.objective == pytest.approx(best, rel=1e-9)
    assert found.lower_bound <= best * (1 + 1e-9)


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


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_pipers_stages_are_as_fast_as_by_brute_force(seed: int) -> None:
    instance = random_variants(Random(seed))
    found, best = solve_piper(instance, PiperSetting(4, instance.memory_bytes, 10.0, 4), 60.0), brute_piper(instance, 4)
    if best == math.inf:
        assert found.status == INFEASIBLE
        return
    assert found.status == OPTIMAL
    assert found.objective == pytest.approx(best, rel=1e-8)


@given(seeds, st.booleans())
@settings(max_examples=40, deadline=None)
def test_pipedreams_stages_are_as_fast_as_by_brute_force(seed: int, replicate: bool) -> None:
    rng = Random(seed)
    size, num_devices, bandwidth = rng.randint(1, 6), 3, 1000.0
    nodes = tuple(
        LayerNode(f"n{i}", "", rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 30), rng.randint(0, 30))
        for i in range(size)
    )
    instance = LayerInstance(nodes, tuple(random_edges(rng, size)))
    best = math.inf
    for places in product(range(size), repeat=size):
        count = len(set(places))
        if set(places) != set(range(count)) or any(places[a] > places[b] for a, b in instance.edges):
            continue
        for replicas in product(range(1, num_devices + 1 if replicate else 2), repeat=count):
            if sum(replicas) <= num_devices:
                best = min(best, max(_layer_s(instance, places, replicas, s, bandwidth) for s in range(count)))
    found = solve_pipedream(instance, num_devices, bandwidth, replicate=replicate, seconds=60.0)
    assert found.status == OPTIMAL
    assert found.objective == pytest.approx(best, rel=1e-9)


def _layer_s(
    instance: LayerInstance, places: tuple[int, ...], replicas: tuple[int, ...], stage: int, bandwidth: float
) -> float:
    rows = [node for node, place in zip(instance.nodes, places, strict=True) if place == stage]
    r = replicas[stage]
    work = sum(node.forward_ms + node.backward_ms for node in rows) / 1000
    own = (work + 4 * (r - 1) * sum(node.parameter_bytes for node in rows) / (bandwidth * r)) / r

    def border_s(last: int) -> float:
        read = {a for a, b in instance.edges if places[a] <= last < places[b]}
        return 2 * sum(instance.nodes[a].activation_bytes for a in read) / (bandwidth * r)

    return own if stage == 0 else max(own, border_s(stage - 1), border_s(stage))


ROWS = [
    ("dnn-partitioning", "layer_bert24_training", 6, "", 41.7458125),
    ("dnn-partitioning", "operator_bert_l-3_training", 3, "", 65.303149122),
    ("dnn-partitioning", "operator_resnet50_inference", 6, "", 128.073511104),
    ("piper", "bert32a100", 8, "--memory 8 --bandwidth 26.8435456", 0.16585575),
    ("pipedream", "vgg16_graph", 4, "--no-data-parallel", 0.411041792),
    ("pipedream", "vgg16_graph", 4, "", 0.205520896),
    ("pipedream", "gnmt_graph", 4, "--no-data-parallel", 0.025868),
]
"""Format, instance, devices, flags and the value published (`best_known.csv`)."""


@pytest.mark.parametrize(("kind", "name", "devices", "flags", "known"), ROWS)
def test_published_instances_are_proved_optimal_at_the_known_value(
    kind: str, name: str, devices: int, flags: str, known: float, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder("instances", kind, f"{name}.{'txt' if kind == 'pipedream' else 'json'}")
    arguments = ["partition", str(path), "--format", kind, "--devices", str(devices), *flags.split(), "--json"]
    assert main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == OPTIMAL
    assert answer["objective"] <= known * (1 + 1e-6)
    assert answer["lower_bound"] >= answer["objective"] * (1 - 1e-6)


DNN = {
    "maxSizePerFPGA": 8.0,
    "maxFPGAs": 2,
    "nodes": [{"id": i, "fpgaLatency": 1.0, "isBackwardNode": 0, "size": 1.0, "colorClass": i} for i in range(3)],
    "edges": [{"sourceId": i, "destId": i + 1, "cost": 1.0} for i in range(2)],
}
EDGE = {"sourceId": 0, "destId": 1, "cost": 1.0}
WAY = {"timePerSample": 1.0, "parameterSize": 1.0, "memoryUsageA": 1.0, "memoryUsageB": 1.0,
       "syncTimeFw": {}, "syncTimeBw": {}}  # fmt: skip
PIPER = {
    "maxDevices": 2,
    "maxMemoryPerDevice": 8.0,
    "bandwidth": 1.0,
    "mbsInBatch": 4,
    "nodes": [{"id": i, "TMPCs": {"1": [WAY]}} for i in range(3)],
    "edges": [{"sourceId": i, "destId": i + 1, "communicationCost": 1.0} for i in range(2)],
}
FIELDS = "forward_compute_time=1.0, backward_compute_time=1.0, activation_size=1.0, parameter_size=1.0"
GRAPH = f"node1 -- A -- {FIELDS}\nnode2 -- B -- {FIELDS}\n\tnode1 -- node2\n"


@pytest.mark.parametrize(
    ("reader", "text", "place"),
    [
        (read_dnn_partitioning, json.dumps(DNN)[:-20], "instance"),
        (
            read_dnn_partitioning,
            json.dumps(DNN | {"edges": [{"sourceId": 0, "destId": 9, "cost": 1}]}),
            "/edges/0/destId",
        ),
        (
            read_dnn_partitioning,
            json.dumps(DNN | {"edges": [{"sourceId": 0, "destId": 1, "cost": -1}]}),
            "/edges/0/cost",
        ),
        (
            read_dnn_partitioning,
            json.dumps(DNN | {"edges": [{"sourceId": a, "destId": b, "cost": 1} for a, b in ((0, 1), (1, 0))]}),
            "cycle",
        ),
        (read_piper, json.dumps(PIPER)[:-5], "instance"),
        (read_piper, json.dumps(PIPER | {"nodes": PIPER["nodes"][:2]}), "/edges/1/destId"),  # type: ignore[index]
        (read_piper, json.dumps(PIPER | {"bandwidth": -1}), "/bandwidth"),
        (
            read_piper,
            json.dumps(
                PIPER | {"edges": [{"sourceId": a, "destId": b, "communicationCost": 1} for a, b in ((0, 1), (1, 0))]}
            ),
            "cycle",
        ),
        (read_pipedream, GRAPH[:60], "line 1"),
        (read_pipedream, GRAPH + "\tnode2 -- node7\n", "node7"),
        (read_pipedream, GRAPH.replace("forward_compute_time=1.0", "forward_compute_time=-1.0", 1), "line 1"),
        (read_pipedream, GRAPH + "\tnode2 -- node1\n", "cycle"),
    ],
)
def test_a_broken_instance_is_refused_with_its_place(reader: object, text: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "instance"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=place):
        reader(path)  # type: ignore[operator]


def test_what_does_not_fit_says_how_much_memory_would_do_and_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "instance.json"
    gib = 2.0**30
    nodes = [node | {"size": size * gib} for node, size in zip(DNN["nodes"], (3, 3, 2), strict=True)]  # type: ignore[call-overload]
    path.write_text(json.dumps(DNN | {"nodes": nodes, "maxSizePerFPGA": 4 * gib}))
    plain = ["partition", str(path), "--format", "dnn-partitioning", "--devices", "2"]
    assert main(plain) == 4
    words = capsys.readouterr().err.split()
    enough = words[words.index("--memory") + 1]
    assert float(enough) == 5.0
    assert main([*plain, "--memory", enough]) == 0


@pytest.mark.parametrize("kind", ["dnn-partitioning", "piper", "pipedream"])
def test_an_instance_becomes_a_profile_that_can_be_planned(kind: str, tmp_path: Path) -> None:
    path, profile = tmp_path / "instance.json", tmp_path / "profile.json"
    roomy = {"dnn-partitioning": DNN | {"maxSizePerFPGA": 1e9}, "piper": PIPER | {"maxMemoryPerDevice": 1e9}}
    path.write_text(json.dumps(roomy[kind]) if kind in roomy else GRAPH)
    assert main(["import", kind, str(path), "-o", str(profile)]) == 0
    plan = ["plan", str(profile), "--devices", "2", "--batch", "4", "--deterministic-limit", "0.1"]
    assert main([*plan, "-o", str(tmp_path / "plan.json")]) == 0


def test_tensors_pay_where_they_are_torn() -> None:
    instance = LatencyInstance(
        tuple(LatencyNode(str(i), 5.0, 0.0, is_backward=False, colour=None, runs=True) for i in range(3)),
        (CostedTensor(0, (1, 2), 2.0),),
        3,
        1.0,
    )
    loads = {2: 12.0, 3: 7.0}
    for devices, load in loads.items():
        assert solve_contiguous(instance, devices, 1.0, 60.0).objective == load
    assert all(a > b for a, b in pairwise(loads.values()))
