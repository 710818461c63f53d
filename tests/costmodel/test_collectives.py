"""Collectives: the rates and latencies that NCCL reaches, whole levels, shared NICs, measurements, and their laws."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InvalidInput
from costmodel.machines import catalogue
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import GIB, DeviceType, Host, LinkGroup
from costmodel.machines.collectives import all_gather_ns, all_reduce_ns, all_to_all_ns, reduce_scatter_ns
from costmodel.machines.collectives.levels import levels_of
from costmodel.machines.links import LinkClass, Links, SizeRange
from costmodel.machines.typical import typical_cluster

ALL = (all_reduce_ns, all_gather_ns, reduce_scatter_ns, all_to_all_ns)
NVLINK_US, PCIE_US, NETWORK_US = 7.2, 7.6, 9.3
"""NCCL's own latency of one small message: launch 6.6 and a hop of 0.6, 1.0 and 2.7."""


KINDS_OF = ("scale-up", "network")


def machines(num_hosts: int, per_host: int, *links: LinkGroup, kind: str = "cuda") -> Cluster:
    return Cluster((DeviceType("gpu", 80 * GIB, kind),), (Host("gpu", per_host, num_hosts),), links)


def nvlink(group: int, gbs: float, latency_ns: int) -> LinkGroup:
    return LinkGroup("nvlink", group, gbs, latency_ns, kind="scale-up")


def hosts_of_eight(num_hosts: int, nic_gbs: float = 25.0, shared_gbs: float = 0.0) -> Cluster:
    network = LinkGroup("network", 0, nic_gbs, round(1000 * NETWORK_US), shared_gbs)
    return machines(num_hosts, 8, nvlink(8, 240.0, round(1000 * NVLINK_US)), network)


def bus_gbs(cluster: Cluster, num_ranks: int, size_bytes: int) -> float:
    """Bus bandwidth as nccl-tests reports it."""
    return 2 * (num_ranks - 1) / num_ranks * size_bytes / all_reduce_ns(cluster, tuple(range(num_ranks)), size_bytes)


@pytest.mark.parametrize(
    ("device_id", "published_gbs"),
    [
        ("a100-sxm-80", 240.0),  # what NCCL itself assumes
        ("h100-sxm-80", 370.8),
        ("h100-sxm-80", 370.67),  # the ring at its best, astra-sim's validation
        ("h200-sxm-141", 365.6),  # measured: 8 GPUs, 8 GiB, NVLS off
        ("b200-sxm-180", 721.8),
        ("b200-sxm-180", 682.2),  # measured: 8 GPUs, 8 GiB, NVLS off
    ],
)
def test_a_large_ring_all_reduce_reaches_the_published_bus_bandwidth(device_id: str, published_gbs: float) -> None:
    device = catalogue.device(device_id)
    cluster = machines(1, 8, nvlink(0, device.scaleup_gbs, round(1000 * NVLINK_US)))
    assert bus_gbs(cluster, 8, 8 * GIB) == pytest.approx(published_gbs, rel=0.1)


@pytest.mark.parametrize(
    ("cluster", "num_ranks", "expected_us"),
    [
        (machines(1, 8, nvlink(0, 240.0, 7200)), 8, 6.6 + 14 * 0.6),
        (machines(1, 8, nvlink(0, 240.0, 7200)), 2, 6.6 + 2 * 0.6),
        (machines(1, 4, LinkGroup("pcie", 4, 24.0, 7600)), 4, 6.6 + 6 * 1.0),
        (machines(4, 1, LinkGroup("network", 0, 25.0, 9300)), 4, 6.6 + 6 * 2.7),  # a ring; a tree takes 6.8 + 4 * 5.0
        (machines(8, 1, LinkGroup("network", 0, 25.0, 9300)), 8, 6.8 + 2 * 3 * 5.0),  # a tree; a ring 6.6 + 14 * 2.7
        (hosts_of_eight(4), 32, 6.8 + 2 * (7 * 0.6 + 2 * 5.0)),  # chains in the hosts, a tree between them
    ],
)
def test_a_tiny_all_reduce_takes_nccls_launch_and_hops(cluster: Cluster, num_ranks: int, expected_us: float) -> None:
    assert all_reduce_ns(cluster, tuple(range(num_ranks)), 8) == pytest.approx(1000 * expected_us, abs=3)


def test_a_links_own_latency_scales_nccls() -> None:
    once, twice = (machines(1, 8, nvlink(0, 240.0, ns)) for ns in (7200, 14400))
    ranks = tuple(range(8))
    assert all_reduce_ns(twice, ranks, 8) == pytest.approx(2 * all_reduce_ns(once, ranks, 8), abs=3)
    assert all_reduce_ns(machines(1, 8, nvlink(0, 240.0, 0)), ranks, 24 * 10**9) == 175 * 10**6


@pytest.mark.parametrize(
    ("cluster", "ranks", "gbs"),
    [
        (hosts_of_eight(2), tuple(range(16)), 200.0),  # 8 NICs of 25
        (hosts_of_eight(2, 50.0), tuple(range(16)), 240.0),  # the NVLinks are slower than 8 NICs of 50
        (hosts_of_eight(2, 25.0, 100.0), tuple(range(16)), 100.0),  # 4 NICs for 8 devices
        (hosts_of_eight(2, 25.0, 25.0), tuple(range(16)), 25.0),  # one NIC
        (hosts_of_eight(2), (0, 8), 25.0),  # one device a host uses one NIC
        (hosts_of_eight(2, 25.0, 100.0), (0, 8), 12.5),  # and its share while the others do likewise
        (hosts_of_eight(2), (0, 1, 2, 3, 8), 25.0),  # the host with one rank sets the rate
    ],
)
def test_the_slowest_level_sets_the_rate_and_devices_of_a_host_divide_its_nics(
    cluster: Cluster, ranks: tuple[int, ...], gbs: float
) -> None:
    size, num_ranks = 64 * GIB, len(ranks)
    assert 2 * (num_ranks - 1) / num_ranks * size / all_reduce_ns(cluster, ranks, size) == pytest.approx(gbs, rel=0.01)
    assert (num_ranks - 1) / num_ranks * size / all_gather_ns(cluster, ranks, size) == pytest.approx(gbs, rel=0.01)
    assert reduce_scatter_ns(cluster, ranks, size) == all_gather_ns(cluster, ranks, size)


def test_an_oversubscribed_spine_slows_what_crosses_it_and_nothing_else() -> None:
    cluster = machines(
        8,
        8,
        nvlink(8, 240.0, 7200),
        LinkGroup("rack", 32, 25.0, 9300),
        LinkGroup("spine", 0, 25.0, 9300, 50.0),
    )
    in_a_rack, across = (all_reduce_ns(cluster, tuple(range(n)), 64 * GIB) for n in (32, 64))
    assert across / in_a_rack == pytest.approx(4.0, rel=0.05)


def test_hosts_of_four_in_one_nvlink_domain_are_one_level() -> None:
    rack = nvlink(72, 721.8, 7200), LinkGroup("network", 0, 50.0, 9300, 200.0)
    cluster = machines(36, 4, *rack)
    assert [level.link.name for level in levels_of(cluster, tuple(range(72)))] == ["nvlink"]
    assert bus_gbs(cluster, 72, 64 * GIB) == pytest.approx(721.8, rel=0.01)
    two = levels_of(cluster, tuple(range(144)))
    assert [(level.link.name, level.fanout, level.unit_gbs) for level in two] == [
        ("nvlink", 72, 721.8),
        ("network", 2, 72 * 50.0),
    ]


@pytest.mark.parametrize(
    ("cluster", "ranks", "gbs_of_parts"),
    [
        (hosts_of_eight(2), tuple(range(8)), 240.0 / 7),  # 7 of 8 parts leave by NVLink
        (hosts_of_eight(2), tuple(range(16)), 25.0 / 8),  # 8 of 16 go to the other host by the own NIC
        (hosts_of_eight(2, 25.0, 100.0), tuple(range(16)), 12.5 / 8),
        (hosts_of_eight(4), (0, 8, 16, 24), 25.0 / 3),
    ],
)
def test_an_all_to_all_is_bound_by_the_level_with_most_to_carry(
    cluster: Cluster, ranks: tuple[int, ...], gbs_of_parts: float
) -> None:
    size = 64 * GIB
    assert size / len(ranks) / all_to_all_ns(cluster, ranks, size) == pytest.approx(gbs_of_parts, rel=0.01)


def test_gloo_runs_rings_whose_every_step_is_a_message() -> None:
    cluster = machines(1, 4, LinkGroup("local", 0, 1.0, 20000), kind="cpu")
    ranks = (0, 1, 2, 3)
    assert all_reduce_ns(cluster, ranks, 4000) == 6 * (20000 + 1000)
    assert all_gather_ns(cluster, ranks, 4000) == 3 * (20000 + 1000)
    assert all_to_all_ns(cluster, ranks, 4000) == 3 * (20000 + 1000)


def with_links(cluster: Cluster, num_ranks: int, **classes: tuple[int, float]) -> Cluster:
    known = {name: LinkClass((SizeRange(0, *line),)) for name, line in classes.items()}
    return replace(cluster, links=Links("nccl", "gpu", num_ranks, known))


def test_a_measurement_of_these_ranks_takes_the_place_of_the_model() -> None:
    cluster = with_links(hosts_of_eight(2), 8, all_reduce=(30000, 100.0))
    assert all_reduce_ns(cluster, tuple(range(8)), 10**9) == 30000 + 10**7
    assert all_reduce_ns(cluster, tuple(range(8, 16)), 10**9) == 30000 + 10**7
    assert all_gather_ns(cluster, tuple(range(8)), 10**9) == all_gather_ns(hosts_of_eight(2), tuple(range(8)), 10**9)


def test_a_measurement_is_scaled_to_other_ranks_on_the_same_link_and_left_aside_for_other_links() -> None:
    plain = hosts_of_eight(2)
    cluster = with_links(plain, 2, all_reduce=(10000, 100.0))
    # from 2 to 8 ranks: 12 more hops of NVLink, and 7/8 instead of 1/2 of the buffer on a link
    assert all_reduce_ns(cluster, tuple(range(8)), 10**9) == 10000 + 7200 + 17_500_000
    assert all_reduce_ns(cluster, (0, 8), 10**9) == all_reduce_ns(plain, (0, 8), 10**9)
    assert all_reduce_ns(cluster, tuple(range(16)), 10**9) == all_reduce_ns(plain, tuple(range(16)), 10**9)


def test_a_measurement_over_hosts_is_scaled_to_more_hosts_alike() -> None:
    plain = hosts_of_eight(4)
    cluster = with_links(plain, 16, all_reduce=(50000, 100.0))
    assert all_reduce_ns(cluster, tuple(range(16)), 15 * 10**8) == 50000 + 15 * 10**6
    # 2 more hosts: 14 hops of NVLink and 2 of the network more a round; 31/32 instead of 15/16 on a link
    expected = 50000 + 2 * (14 * 600 + 2 * 2700) + round(15 * 10**8 * (31 / 32) / (15 / 16)) // 100
    assert all_reduce_ns(cluster, tuple(range(32)), 15 * 10**8) == expected
    by_fours = (0, 1, 2, 3, 8, 9, 10, 11)
    assert all_reduce_ns(cluster, by_fours, GIB) == all_reduce_ns(plain, by_fours, GIB)


def test_a_measured_transfer_gives_the_latency_and_bandwidth_of_its_link() -> None:
    cluster = with_links(hosts_of_eight(2), 2, p2p=(14400, 120.0))
    by_hand = machines(1, 8, nvlink(0, 120.0, 14400))
    for size in (8, 64 * GIB):
        assert all_reduce_ns(cluster, tuple(range(8)), size) == all_reduce_ns(by_hand, tuple(range(8)), size)
    assert all_reduce_ns(cluster, (0, 8), GIB) == all_reduce_ns(hosts_of_eight(2), (0, 8), GIB)


@pytest.mark.parametrize("collective", ALL)
def test_one_rank_and_nothing_to_send_take_no_time(collective) -> None:  # type: ignore[no-untyped-def]
    assert collective(hosts_of_eight(2), (3,), GIB) == 0
    assert collective(hosts_of_eight(2), (0, 1, 9), 0) == 0


@pytest.mark.parametrize("ranks", [(0, 0), (0, 16), (-1, 0)])
def test_ranks_that_the_cluster_does_not_have_are_refused(ranks: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="name each once, of 0 to 15"):
        all_reduce_ns(hosts_of_eight(2), ranks, GIB)


@pytest.mark.parametrize(
    ("device", "per_host", "links", "kinds"),
    [
        ("h100-sxm-80", 8, (8, 0), ["nvlink", "network"]),
        ("h100-sxm-80", 4, (4, 0), ["nvlink", "network"]),  # two hosts of four: the domain ends with the host
        ("gb200-nvl72", 4, (8, 0), ["nvlink", "network"]),
        ("l40s-48", 8, (8, 0), ["pcie", "network"]),
        ("", 8, (8, 0), ["pcie", "network"]),
        ("h100-sxm-80", 16, (0,), ["pcie"]),  # one host of more than a domain
        ("h100-sxm-80", 8, (0,), ["network"]),
        ("gb200-nvl72", 4, (0,), ["nvlink"]),
    ],
)
def test_a_link_is_what_the_catalogue_joins_such_devices_by_whatever_its_rate(
    device: str, per_host: int, links: tuple[int, ...], kinds: list[str]
) -> None:
    for gbs in (10.0, 1000.0):
        groups = tuple(LinkGroup(f"link{group}", group, gbs, 9000) for group in links)
        types = (DeviceType("gpu", 80 * GIB, "cuda", device),)
        cluster = Cluster(types, (Host("gpu", per_host, 16 // per_host),), groups)
        assert [cluster.link_kind(group) for group in groups] == kinds


def test_a_faster_network_is_never_slower_and_is_no_nvlink() -> None:
    """A host link of 100 GB/s a device counted as NVLink, one device sending what eight can."""
    ranks = tuple(range(16))
    for collective in ALL:
        times = [collective(hosts_of_eight(2, gbs), ranks, 2**30) for gbs in (25.0, 50.0, 99.0, 100.0, 200.0, 400.0)]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(("device_id", "published_gbs"), [("h200-sxm-141", 473.1), ("b200-sxm-180", 838.0)])
def test_switches_that_sum_reach_the_bus_bandwidth_that_was_measured(device_id: str, published_gbs: float) -> None:
    """8 devices, 8 GiB, NVLS on (stas00/ml-engineering, network/README.md)."""
    assert bus_gbs(typical_cluster(device_id, 8), 8, 8 * GIB) == pytest.approx(published_gbs, rel=0.08)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8, 16, 64])
def test_a_switch_that_sums_never_makes_a_collective_slower(num_ranks: int) -> None:
    summing = typical_cluster("h100-sxm-80", max(8, num_ranks))
    plain = replace(summing, devices=(replace(summing.devices[0], catalogue=""),))
    plain = replace(plain, groups=tuple(replace(g, kind=k) for g, k in zip(plain.groups, KINDS_OF, strict=False)))
    ranks = tuple(range(num_ranks))
    for size in (8, 2**20, 2**30):
        assert all_reduce_ns(summing, ranks, size) <= all_reduce_ns(plain, ranks, size)
        assert all_gather_ns(summing, ranks, size) == all_gather_ns(plain, ranks, size)
    if num_ranks < 3:  # NCCL asks for more
        assert all_reduce_ns(summing, ranks, 2**30) == all_reduce_ns(plain, ranks, 2**30)


def test_a100s_have_no_switch_that_sums() -> None:
    assert bus_gbs(typical_cluster("a100-sxm-80", 8), 8, 8 * GIB) <= 240.0


def test_trees_gather_small_buffers_of_many_hosts_faster_than_a_ring() -> None:
    """PAT: 8.4 us, 4.0 for each doubling, and 2.8 for each of 512 ranks; a ring of LL 6.6 and 511 hops of 2.7."""
    cluster, ranks = machines(512, 1, LinkGroup("network", 0, 25.0, 9300)), tuple(range(512))
    assert all_gather_ns(cluster, ranks, 2**20) == reduce_scatter_ns(cluster, ranks, 2**20)
    ring_us, sent_us = 14.0 + 511 * 4.0, 2**20 * 511 / 512 / 0.92 / 25e3
    assert all_gather_ns(cluster, ranks, 2**20) < 1000 * (ring_us + sent_us)
    assert all_gather_ns(cluster, ranks, 2**20) >= 1000 * (8.4 + 9 * 4.0 + 512 * 2.8)


def test_devices_without_peer_to_peer_send_through_their_hosts_memory() -> None:
    one, other = (typical_cluster(name, 8).groups[0].bandwidth_gbs for name in ("rtx4090-24", "l40s-48"))
    assert one == other / 2


def test_every_device_that_has_a_network_is_priced_beyond_one_host() -> None:
    for device in ("h100-96-500w", "gb300-nvl72", "b300-sxm-288"):
        assert all_reduce_ns(typical_cluster(device, 144), tuple(range(144)), 2**30) > 0
    assert typical_cluster("gb300-nvl72", 144).groups[-1].bandwidth_gbs == 100.0  # 4 NICs of 800 Gb/s a host of 4


@st.composite
def cases(draw: st.DrawFn) -> tuple[Cluster, tuple[int, ...]]:
    """Up to three levels of links, shared or not, and some of the ranks."""
    inner, middle, outer = (draw(st.integers(1, 4)) for _ in range(3))
    gbs = st.floats(0.1, 1000.0)
    links = [
        LinkGroup(f"link{i}", group, draw(gbs), draw(st.integers(0, 50000)), draw(st.one_of(st.just(0.0), gbs)))
        for i, group in enumerate((inner, inner * middle, 0))
    ]
    cluster = machines(middle * outer, inner, *links, kind=draw(st.sampled_from(("cuda", "cpu"))))
    ranks = draw(st.lists(st.integers(0, cluster.num_devices - 1), min_size=1, unique=True))
    return cluster, tuple(ranks)


@given(cases(), st.integers(0, 2**36), st.integers(0, 2**36))
@settings(max_examples=200, deadline=None)
def test_times_are_whole_never_negative_and_rise_with_size(
    case: tuple[Cluster, tuple[int, ...]], first: int, second: int
) -> None:
    cluster, ranks = case
    for collective in ALL:
        times = [collective(cluster, ranks, size) for size in sorted((first, second))]
        assert all(isinstance(time, int) for time in times)
        assert 0 <= times[0] <= times[1]


@given(cases(), st.integers(1, 2**36))
@settings(max_examples=200, deadline=None)
def test_no_collective_is_cheaper_than_its_slowest_level_allows(
    case: tuple[Cluster, tuple[int, ...]], size_bytes: int
) -> None:
    cluster, ranks = case
    for level in levels_of(cluster, ranks):
        share = size_bytes * (level.fanout - 1) / level.fanout / level.unit_gbs
        assert all_reduce_ns(cluster, ranks, size_bytes) >= int(2 * share)
        assert all_gather_ns(cluster, ranks, size_bytes) >= int(share)
        assert reduce_scatter_ns(cluster, ranks, size_bytes) >= int(share)
        assert all_to_all_ns(cluster, ranks, size_bytes) >= int(size_bytes * level.peers / len(ranks) / level.rank_gbs)


@given(cases(), st.integers(1, 2**36))
@settings(max_examples=100, deadline=None)
def test_an_all_reduce_is_never_dearer_than_a_reduce_scatter_and_an_all_gather(
    case: tuple[Cluster, tuple[int, ...]], size_bytes: int
) -> None:
    cluster, ranks = case
    two = reduce_scatter_ns(cluster, ranks, size_bytes) + all_gather_ns(cluster, ranks, size_bytes)
    assert all_reduce_ns(cluster, ranks, size_bytes) <= two + 1


@given(cases(), st.integers(1, 2**36), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_the_ranks_does_not_matter(case, size_bytes: int, random) -> None:  # type: ignore[no-untyped-def]
    cluster, ranks = case
    shuffled = random.sample(ranks, len(ranks))
    for collective in ALL:
        assert abs(collective(cluster, ranks, size_bytes) - collective(cluster, tuple(shuffled), size_bytes)) <= 1
