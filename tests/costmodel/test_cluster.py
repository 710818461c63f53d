"""Cluster files: which link joins two ranks, what the catalogue fills in, and what wrong files are told."""

import json
from pathlib import Path

import pytest

from costmodel.errors import InvalidInput
from costmodel.files import Node
from costmodel.machines import catalogue
from costmodel.machines.cluster import CLUSTER, Cluster, read_cluster
from costmodel.machines.cluster_parts import GIB, DeviceType, Host, LinkGroup
from costmodel.machines.links import LinkClass, Links, SizeRange

HEAD = 'format = "penstock-cluster"\nversion = 1\n'
A100 = '[[device]]\nname = "a100"\ncatalogue = "a100-sxm-80"\n'
V100 = '[[device]]\nname = "v100"\ncatalogue = "v100-sxm3-32"\nmemory_gib = 31.0\n'
GB200 = '[[device]]\nname = "gb200"\ncatalogue = "gb200-nvl72"\n'


def host(device: str, devices: int, count: int = 1) -> str:
    return f'[[host]]\ncount = {count}\ndevice = "{device}"\ndevices = {devices}\n'


def link(name: str, group: int, gbs: float, us: float, shared: float = 0.0) -> str:
    return (
        f'[[link]]\nname = "{name}"\ngroup = {group}\nbandwidth_gbs = {gbs}\nlatency_us = {us}\nshared_gbs = {shared}\n'
    )


NVLINK, NETWORK = link("nvlink", 8, 240.0, 6.0), link("network", 0, 25.0, 10.0)
MIXED = A100 + V100 + host("a100", 8, 2) + host("v100", 16) + NVLINK + NETWORK
SHARED = (
    A100
    + host("a100", 8, 8)
    + link("pair", 2, 200.0, 6.0)
    + link("pcie", 8, 16.0, 10.0)
    + link("rack", 32, 25.0, 10.0, 50.0)
    + link("spine", 0, 25.0, 12.0, 25.0)
)
NVL72 = GB200 + host("gb200", 4, 36) + link("nvlink", 72, 721.8, 6.0) + link("network", 0, 50.0, 10.0, 200.0)


def read(text: str, folder: Path) -> Cluster:
    (folder / "cluster.toml").write_text(HEAD + text)
    return read_cluster(folder / "cluster.toml")


@pytest.mark.parametrize(
    ("text", "pair", "name"),
    [
        (MIXED, (0, 7), "nvlink"),
        (MIXED, (7, 8), "network"),
        (MIXED, (0, 16), "network"),  # an A100 and a V100
        (MIXED, (16, 23), "nvlink"),
        (MIXED, (23, 24), "network"),  # the V100 host has 16 devices, its link groups 8
        (SHARED, (0, 1), "pair"),
        (SHARED, (1, 2), "pcie"),
        (SHARED, (0, 7), "pcie"),
        (SHARED, (7, 8), "rack"),
        (SHARED, (0, 31), "rack"),
        (SHARED, (31, 32), "spine"),
        (NVL72, (0, 3), "nvlink"),  # one host
        (NVL72, (3, 4), "nvlink"),  # two hosts of one rack
        (NVL72, (0, 71), "nvlink"),
        (NVL72, (71, 72), "network"),  # two racks
        (NVL72, (5, 143), "network"),
    ],
)
def test_two_ranks_have_the_link_that_a_person_would_name(
    text: str, pair: tuple[int, int], name: str, tmp_path: Path
) -> None:
    cluster = read(text, tmp_path)
    assert cluster.link_between(*pair).name == name
    assert cluster.link_between(*reversed(pair)).name == name


def test_the_catalogue_fills_what_is_not_given_and_any_key_overrides_it(tmp_path: Path) -> None:
    cluster = read(MIXED, tmp_path)
    assert cluster.device_of(0) == DeviceType(
        "a100", catalogue.device("a100-sxm-80").memory_bytes, "cuda", "a100-sxm-80"
    )
    assert cluster.device_of(31) == DeviceType("v100", 31 * GIB, "cuda", "v100-sxm3-32")


@pytest.mark.parametrize("text", [MIXED, SHARED, NVL72, MIXED + "[[rank]]\nindex = 3\nspeed = 0.9\n"])
def test_a_cluster_inside_a_plan_reads_back_as_it_was(text: str, tmp_path: Path) -> None:
    cluster = read(text, tmp_path)
    assert CLUSTER.read(Node(json.loads(json.dumps(CLUSTER.write(cluster))), "/cluster", "plan.json")) == cluster


def test_devices_of_one_host_divide_what_they_share(tmp_path: Path) -> None:
    cluster = read(SHARED, tmp_path)
    rack, spine = cluster.groups[2:]
    assert [cluster.flow_gbs(0, group) for group in cluster.groups] == [200.0, 16.0, 6.25, 3.125]
    assert cluster.p2p_ns(7, 8, 10**9) == rack.latency_ns + 10**9 // 25  # alone, a transfer has it all
    assert cluster.p2p_ns(0, 32, 10**9) == spine.latency_ns + 10**9 // 25


def test_a_transfer_alone_gets_no_more_than_what_its_host_has() -> None:
    slow = Cluster((DeviceType("a", GIB),), (Host("a", 1, 2),), (LinkGroup("net", 0, 25.0, 1000, 10.0),))
    assert slow.p2p_ns(0, 1, 10**9) == 1000 + 10**8


def test_a_pair_of_mi300x_sees_one_link_however_many_the_device_has() -> None:
    cluster = Cluster(
        (DeviceType("mi300x", 192 * GIB, "cuda", "mi300x-192"),),
        (Host("mi300x", 8),),
        (LinkGroup("xgmi", 0, 448.0, 0),),
    )
    assert cluster.p2p_ns(0, 1, 64 * 10**9) == 10**9


def test_a_measured_transfer_speaks_for_the_link_that_it_was_measured_on() -> None:
    links = Links("nccl", "A100", 2, {"p2p": LinkClass((SizeRange(0, 7000, 200.0),))})
    groups = (LinkGroup("nvlink", 8, 240.0, 6000), LinkGroup("network", 0, 25.0, 10000))
    cluster = Cluster((DeviceType("a100", GIB),), (Host("a100", 8, 2),), groups, (), links)
    assert cluster.p2p_ns(0, 7, 2 * 10**8) == 7000 + 10**6
    assert cluster.p2p_ns(0, 8, 2 * 10**8) == 10000 + 8 * 10**6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            A100 + host("a100", 8, 2) + link("nvlink", 6, 240.0, 6.0) + NETWORK,
            "link 'nvlink' joins groups of 6 devices, which does not divide the 16 devices; choose a divisor, or 0",
        ),
        (
            A100 + host("a100", 6, 2) + link("nvlink", 4, 240.0, 6.0) + link("rail", 6, 25.0, 6.0) + NETWORK,
            "link 'rail' joins groups of 6 devices, which do not hold whole groups of 4 of the link before it; list",
        ),
        (
            A100 + host("a100", 8, 2) + NETWORK + NVLINK,
            "link 'nvlink' joins groups of 8 devices, which do not hold whole groups of 16 of the link before it; list",
        ),
        (
            A100.replace("a100-sxm-80", "a100-80gb") + host("a100", 8) + NVLINK,
            "/device/0/catalogue: the catalogue has no device 'a100-80gb'; near it are a100-sxm-80",
        ),
        (
            A100.replace("a100-sxm-80", "a100-80gb") + "memory_gib = 80\n" + host("a100", 8) + NVLINK,
            "the catalogue has no device 'a100-80gb'; near it are a100-sxm-80",
        ),
        (
            A100 + host("a100", 8) + link("nvlink", 8, -240.0, 6.0),
            "/link/0/bandwidth_gbs: found -240.0; the number must lie between",
        ),
        (A100 + host("a100", 8) + link("nvlink", 8, 0.0, 6.0), "bandwidth_gbs 0 must be at least 1e-09"),
        (
            A100 + host("a100", 8) + link("nvlink", 8, 240.0, 6.0, 1e-12),
            "shared_gbs 1e-12 must be at least 1e-09 (10^9 bytes a second, one direction), or 0",
        ),
        (A100 + host("h100", 8) + NVLINK, "a host has the device 'h100'; the file defines a100"),
        (A100 + A100 + host("a100", 8) + NVLINK, "two [[device]] entries are named 'a100'; keep one of them"),
        (A100 + host("a100", 8, 2) + NVLINK + NVLINK, "two [[link]] entries are named 'nvlink'"),
        (
            A100 + host("a100", 8) + NVLINK + 2 * "[[rank]]\nindex = 3\nspeed = 0.5\n",
            "two [[rank]] entries have the index 3; keep one of them",
        ),
        (A100 + host("a100", 8, 10**9) + NVLINK, "8000000000 devices; [[host]] entries must make 1 to 1048576"),
        ('[[device]]\nname = "a100"\n' + host("a100", 8) + NVLINK, "needs memory_gib, or a catalogue id"),
        (A100 + host("a100", 8, 2) + NVLINK, "no link joins all 16 devices; give an outermost [[link]] with group = 0"),
    ],
)
def test_a_wrong_cluster_has_one_clear_error_with_the_way_out(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as error:
        read(text, tmp_path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
