"""Files in the shapes that tools write, sound and broken: each is read to its value or refused with its line."""

import json

import pytest

from costmodel.errors import InvalidInput
from costmodel.importers.nccl_tests import links_of, read_nccl_runs
from costmodel.importers.topology import read_topology
from costmodel.machines import catalogue
from planner.commands import main
from tests.support.repository import DATA

CORPUS = DATA / "imports"
EXPECTED = json.loads((CORPUS / "expected.json").read_text())
NCCL = sorted(name for name in EXPECTED if name.endswith((".txt", ".json")) and "topo_" not in name)
TOPOLOGIES = sorted(EXPECTED.keys() - NCCL)


def read_nccl(name):
    runs = read_nccl_runs([CORPUS / name])
    links = links_of(runs)
    found = {"ranks": links.num_ranks, "device": links.device}
    found["classes"] = {kind: list(map(list, link.table)) for kind, link in links.classes.items()}
    left_out = {run.kind: list(run.left_out) for run in runs if run.left_out}
    return {**found, "left_out": left_out} if left_out else found


def read_cluster(name, device):
    known = catalogue.find_device(device) if device else None
    found = read_topology(CORPUS / name, device=known)
    links = [[link.name, link.group, pytest.approx(link.bandwidth_gbs)] for link in found.links]
    return {"hosts": found.num_hosts, "devices": found.num_hosts * found.devices_per_host, "links": links}


@pytest.mark.parametrize("name", NCCL)
def test_nccl_tests_output_is_read_to_its_times_or_refused_with_its_line(name):
    wanted = EXPECTED[name]
    if "refused" not in wanted:
        assert read_nccl(name) == wanted
        return
    with pytest.raises(InvalidInput) as refusal:
        read_nccl(name)
    assert all(part in str(refusal.value) for part in wanted["refused"])


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topology_is_read_to_its_hosts_and_links_or_refused_with_its_line(name):
    wanted = dict(EXPECTED[name])
    device = wanted.pop("device", "")
    if "refused" not in wanted:
        assert read_cluster(name, device) == wanted
        return
    with pytest.raises(InvalidInput) as refusal:
        read_cluster(name, device)
    assert all(part in str(refusal.value) for part in wanted["refused"])


def test_the_corpus_is_of_a_hundred_and_twenty_files_or_more_and_each_is_expected():
    files = {path.name for path in CORPUS.iterdir()} - {"expected.json"}
    assert files == EXPECTED.keys()
    assert len(files) >= 120


@pytest.mark.parametrize("name", ["fault_appended.txt", "fault_slurm_falling.conf", "fault_json_split.json"])
def test_a_refused_import_leaves_no_file(name, tmp_path, capsys):
    kind = "topology" if name.endswith(".conf") else "nccl-tests"
    assert main(["import", kind, str(CORPUS / name), "-o", str(tmp_path / "out.json")]) == 3
    assert not list(tmp_path.iterdir())
