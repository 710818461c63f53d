"""Other planners' problems: equal to brute force under their own objectives, and one clear error for a broken file."""

import json
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peer_problems.__main__ import main as peer_main
from benchmarks.peer_problems.answer import OPTIMAL
from benchmarks.peer_problems.contiguous_search import solve_contiguous
from benchmarks.peer_problems.readers.dnn_partitioning import (
    CostedTensor,
    LatencyInstance,
    LatencyNode,
    read_dnn_partitioning,
)
from benchmarks.peer_problems.readers.pipedream import read_pipedream
from benchmarks.peer_problems.readers.piper import read_piper
from costmodel.errors import InvalidInput
from planner.commands import main
from tests.properties.peer_promises import contiguous_failure, pipedream_failure, piper_failure
from tests.support.published_data import folder

seeds = st.integers(0, 1 << 40)


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_contiguous_devices_are_cut_as_well_as_by_brute_force(seed: int) -> None:
    assert contiguous_failure(Random(seed)) == ""


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_pipers_stages_are_as_fast_as_by_brute_force(seed: int) -> None:
    assert piper_failure(Random(seed)) == ""


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_pipedreams_stages_are_as_fast_as_by_brute_force(seed: int) -> None:
    assert pipedream_failure(Random(seed)) == ""


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
    arguments = [str(path), "--format", kind, "--devices", str(devices), *flags.split(), "--json"]
    assert peer_main(arguments) == 0
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
    plain = [str(path), "--format", "dnn-partitioning", "--devices", "2"]
    assert peer_main(plain) == 4
    words = capsys.readouterr().err.split()
    enough = words[words.index("--memory") + 1]
    assert float(enough) == 5.0
    assert peer_main([*plain, "--memory", enough]) == 0


@pytest.mark.parametrize("kind", ["dnn-partitioning", "piper", "pipedream"])
def test_an_instance_becomes_a_profile_that_can_be_planned(kind: str, tmp_path: Path) -> None:
    path, profile = tmp_path / "instance.json", tmp_path / "profile.json"
    roomy = {"dnn-partitioning": DNN | {"maxSizePerFPGA": 1e9}, "piper": PIPER | {"maxMemoryPerDevice": 1e9}}
    path.write_text(json.dumps(roomy[kind]) if kind in roomy else GRAPH)
    assert peer_main([str(path), "--format", kind, "-o", str(profile)]) == 0
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


def test_a_partition_that_is_interrupted_keeps_the_best_so_far(tmp_path: Path) -> None:
    rng = Random(3)
    edges = sorted({(rng.randrange(max(0, i - 60), i), i) for i in range(1, 900) for _ in range(2)})
    nodes = [{"id": i, "supportedOnFpga": 1, "cpuLatency": 1.0, "fpgaLatency": rng.random(), "size": 1,
              "isBackwardNode": False} for i in range(900)]  # fmt: skip
    costs = [rng.random() for _ in nodes]
    rows = [{"sourceId": a, "destId": b, "cost": costs[a]} for a, b in edges]
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"maxFPGAs": 6, "maxCPUs": 0, "maxSizePerFPGA": 1e9, "nodes": nodes, "edges": rows}))
    flags = ["--format", "dnn-partitioning", "--devices", "6", "--time-limit", "300", "--json"]
    command = [sys.executable, "-m", "benchmarks.peer_problems", str(path), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert process.stderr.readline().startswith("best so far")
        process.send_signal(signal.SIGTERM)
        answer = json.loads(process.communicate()[0])
    assert process.returncode == 130
    assert answer["stages"]
    assert answer["lower_bound"] <= answer["objective"]
