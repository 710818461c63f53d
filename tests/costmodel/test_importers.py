"""What was measured elsewhere: read exactly, refused with the place, and nothing private kept."""

import json
import os

import pytest

from costmodel.errors import InvalidInput
from costmodel.importers.host_lists import expand
from costmodel.importers.layers import read_layers
from costmodel.importers.nccl_tests import links_of, read_nccl_runs
from costmodel.importers.topology import read_topology
from costmodel.machines.cluster import read_cluster
from costmodel.machines.links import read_links
from costmodel.model.profile import read_profile, write_profile
from planner.commands import main
from tests.support.fuzzed_readers import HEADER, LAYERS, NCCL_JSON, NCCL_TEXT


def written(tmp_path, text, name="table.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_table_of_layers_is_a_graph_with_those_times_and_bytes(tmp_path):
    profile = read_layers(written(tmp_path, LAYERS), microbatch_size=2)
    graph = profile.graph
    assert [o.name for o in graph.operators] == ["embed", "left", "right", "head", "loss"]
    assert [[graph.operators[p].name for p in row] for row in graph.predecessors] == [
        [],
        ["embed"],
        ["embed"],
        ["left", "right"],
        ["head"],
    ]
    left, right = profile.times_of["left"], profile.times_of["right"]
    assert (left.forward_ns, left.backward_input_ns, left.backward_weight_ns) == (
        (2_000_000,),
        (2_750_000,),
        (1_250_000,),
    )
    assert (right.backward_input_ns, right.backward_weight_ns) == ((6_000_000,), (0,))
    assert profile.times_of["embed"].backward_weight_ns == (1_000_000,)
    assert graph.operators[1].saved[0].size_bytes == 25
    assert profile.whole.step_ns == (21_500_000,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: found the columns"),
        (HEADER, "no layers"),
        (HEADER.replace("after", "before"), "line 1: found the columns"),
        (HEADER + "a,,1,1,0,0,0\n", "line 2: 7 cells, the header has 8"),
        (HEADER + "a,b,1,1,0,0,0,\n", "line 2: after names 'b'"),
        (HEADER + "a,,1,1,0,0,0,\na,,1,1,0,0,0,\n", "line 3: the name 'a' is used twice"),
        (HEADER + "a,,nan,1,0,0,0,\n", "line 2: forward_ms is 'nan'"),
        (HEADER + "a,,-1,1,0,0,0,\n", "line 2: forward_ms is '-1'"),
        (HEADER + "a,,1,1,1.5,0,0,\n", "line 2: parameter_bytes is '1.5'"),
        (HEADER + "a,,1,1,1,0,0,2\n", "line 2: backward_weight_ms is more than backward_ms"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(InvalidInput, match=message):
        read_layers(written(tmp_path, text))


def test_import_layers_writes_a_profile_marked_as_without_a_model(tmp_path, capsys):
    output = tmp_path / "profile.json"
    assert main(["import", "layers", str(written(tmp_path, LAYERS)), "-o", str(output), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["operators"], answer["edges"]) == (5, 5)
    assert read_profile(output).origin.plan_only


def test_nccl_tests_text_is_read_by_its_out_of_place_times(tmp_path):
    links = links_of(read_nccl_runs([written(tmp_path, NCCL_TEXT, "log.txt")]))
    assert (links.num_ranks, links.device, list(links.classes)) == (2, "NVIDIA A100-SXM4-80GB", ["all_reduce"])
    assert links.classes["all_reduce"].table == ((1024, 12_000), (1_048_576, 52_500))
    assert links.classes["all_reduce"].time_ns(1_048_576) == 52_500


def test_nccl_tests_json_is_read_and_its_environment_never_stored(tmp_path, capsys):
    files = [str(written(tmp_path, json.dumps(NCCL_JSON), "out.json")), str(written(tmp_path, NCCL_TEXT, "log.txt"))]
    output = tmp_path / "links.json"
    assert main(["import", "nccl-tests", *files, "-o", str(output), "--json"]) == 0
    links = read_links(output)
    assert links.classes["p2p"].table == ((1024, 8_000), (1_048_576, 60_000))
    assert list(links.classes) == ["p2p", "all_reduce"]
    for text in (output.read_text(), capsys.readouterr().out):
        assert not any(word in text for word in ("hunter2", "SECRET", "secrethost", "/home", "/opt"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "no line '# nThread"),
        (NCCL_TEXT.replace("all_reduce", "broadcast"), "the program is broadcast_perf; read are sendrecv_perf"),
        (NCCL_TEXT.replace("#  Rank", "#  rank"), "line 3: no rank takes part"),
        (NCCL_TEXT.split("        1024")[0], "line 3: the run that begins here has no footer"),
        ('{"args": ["all_gather_perf"], "config": {}}', "no 'results'"),
        (
            NCCL_TEXT + "        8192          2048     float     sum      -1    -1.0\n",
            "line 15: '8192 .* belongs to no run",
        ),
    ],
)
def test_output_of_something_else_is_refused(tmp_path, text, message):
    with pytest.raises(InvalidInput, match=message):
        links_of(read_nccl_runs([written(tmp_path, text, "file")]))


def nvidia(rows):
    head = "\t".join(["", *(f"GPU{i}" for i in range(len(rows))), "CPU Affinity", "NUMA Affinity"])
    body = ["\t".join([f"GPU{i}", *row, "0-31", "0"]) for i, row in enumerate(rows)]
    return "\n".join([head, *body, "", "Legend:", "  X    = Self", ""])


def matrix(count, link):
    return [[" X " if i == j else link(i, j) for j in range(count)] for i in range(count)]


@pytest.mark.parametrize(
    ("link", "groups"),
    [
        (lambda i, j: "NV12", [("nvlink", 0, 240.0)]),
        (lambda i, j: "NV4" if i // 2 == j // 2 else "SYS", [("nvlink", 2, 80.0), ("sys", 0, 10.0)]),
        (lambda i, j: "PIX" if i // 2 == j // 2 else "NODE" if i // 4 == j // 4 else "SYS",
         [("pix", 2, 22.0), ("node", 4, 14.0), ("sys", 0, 10.0)]),
    ],
)  # fmt: skip
def test_nvidia_smis_matrix_becomes_link_groups(tmp_path, capsys, link, groups):
    output = tmp_path / "cluster.toml"
    source = written(tmp_path, nvidia(matrix(8, link)), "topo.txt")
    assert main(["import", "topology", str(source), "-o", str(output), "--memory", "40", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"] == 8
    cluster = read_cluster(output)
    assert [(g.name, g.group, g.bandwidth_gbs) for g in cluster.groups] == groups
    assert cluster.devices[0].memory_bytes == 40 * 2**30


def test_slurms_switches_become_link_groups(tmp_path):
    text = "SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Nodes=n[4-7] # second\nSwitchName=top Switches=s[0-1]\n"
    found = read_topology(written(tmp_path, text, "topology.conf"), devices_per_host=4)
    assert (found.num_hosts, found.devices_per_host) == (8, 4)
    assert [(link.name, link.group) for link in found.links] == [("host", 4), ("switch0", 16), ("network", 0)]


def test_slurms_lists_of_names_are_expanded():
    assert expand("a[0-2,5],b,c[08-10]") == ["a0", "a1", "a2", "a5", "b", "c08", "c09", "c10"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "neither `nvidia-smi topo -m`"),
        (nvidia(matrix(2, lambda i, j: "QPI")), "the row of GPU0"),
        ("SwitchName=top Switches=s[0-1]\n", "names switches that the file does not define"),
        ("SwitchName=s0 Nodes=n[1-4\n", "leave a bracket open"),
        ("SwitchName=s0 Nodes=n[4-1]\n", "'4-1' is no rising range"),
        ("SwitchName=s0 Nodes=n[1-999999999]\n", "no rising range of at most 1000000"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV4\n", "2 GPUs in the header, rows for 1; was the file cut off"),
    ],
)
def test_another_topology_is_refused(tmp_path, text, message):
    with pytest.raises(InvalidInput, match=message):
        read_topology(written(tmp_path, text, "file"))


@pytest.mark.parametrize(
    "words",
    [
        ["layers", "PIPE"],
        ["nccl-tests", "PIPE"],
        ["topology", "PIPE"],
        ["kineto", "PIPE"],
        ["torch-csv", "PIPE", "--profile", "profile.json"],
        ["job", "PIPE", "--trainer", "deepspeed", "--model", "profile.json"],
        ["job", "PIPE", "--trainer", "torchtitan", "--model", "profile.json"],
        ["job", "PIPE", "--trainer", "megatron", "--model", "profile.json"],
    ],
)
def test_an_import_reads_no_pipe_and_leaves_no_file(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("PIPE")
    write_profile("profile.json", read_layers(written(tmp_path, LAYERS)))
    before = set(tmp_path.iterdir())
    assert main(["import", *words, "-o", "out.json", "--json"]) == 3
    assert "is no regular file" in json.loads(capsys.readouterr().out)["error"]
    assert set(tmp_path.iterdir()) == before


def test_what_the_readers_of_a_cluster_refuse_is_not_written(tmp_path, capsys):
    text = "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\nSwitchName=c Nodes=n[5-6]\n"
    text += "SwitchName=m Switches=a,b,c\nSwitchName=top Switches=m\n"
    source = written(tmp_path, text, "topology.conf")
    words = ["import", "topology", str(source), "-o", str(tmp_path / "out.toml"), "--devices-per-host", "1000000"]
    assert main(words) == 3
    assert "nothing is written" in capsys.readouterr().err
    assert not (tmp_path / "out.toml").exists()


def test_doctor_says_versions_places_and_what_can_be_profiled(capsys):
    assert main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["import_locations"]) >= {"costmodel", "torch", "ortools"}
    assert answer["devices"][0]["type"] == "cpu"
    assert answer["can"]["profile on the CPU"]["able"]
    gpu = answer["can"]["profile on a GPU"]
    assert gpu["why"]
    assert gpu["able"] == any(device["type"] == "cuda" for device in answer["devices"])
