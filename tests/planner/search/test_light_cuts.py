"""Where links are slow, a first cut sends at narrow places: its longest work or message is the least of all cuts."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile
from planner.graph.atoms import Partition
from planner.search.proposers.low_traffic import NEAR_ENOUGH, low_traffic_partition
from planner.search.space.bottleneck_partition import bottleneck_partition
from planner.search.space.partitions import FamilyPartitions, by_stage
from tests.support.pipelines import cuts_of, pipelines
from tests.support.random_profiles import random_profile


def narrow_here_and_there(rng: Random) -> Profile:
    """Return a random profile whose tensors differ a hundredfold."""
    profile = random_profile(rng, 9)
    tensors = []
    for tensor in profile.graph.tensors:
        scale = rng.choice([1, 10, 100])
        tensors.append(replace(tensor, size_bytes=tuple(size * scale // 10 for size in tensor.size_bytes)))
    return replace(profile, graph=replace(profile.graph, tensors=tuple(tensors)))


def joined_by(gbs: float) -> Cluster:
    """Return eight devices in hosts of two, joined by links of so many GB/s."""
    hosts = tuple(Host("cpu", 2) for _ in range(4))
    groups = (LinkGroup("inside", 2, 50.0, 100), LinkGroup("between", 0, gbs, 1000))
    return Cluster((DeviceType("cpu", 2**40),), hosts, groups)


def longest_ns(cuts: FamilyPartitions, order: Sequence[int], partition: Partition) -> int:
    """Return the longest work of a stage or message there and back across a border, all that pass it counted."""
    places, machines = cuts.places(partition), cuts.evaluator.problem.machines
    sizes, position = cuts.evaluator.pricer.tensor_bytes(1), {atom: i for i, atom in enumerate(order)}
    found = by_stage(partition, cuts.shares_ns)
    for stage in range(max(partition)):
        border = max(position[atom] for atom, held in enumerate(partition) if held == stage)
        passing = sum(
            sizes[tensor]
            for tensor, producer, consumers in cuts.atoms.flows
            if position[producer] <= border < max(position[one] for one in consumers)
        )
        found.append(2 * machines.p2p_ns(places[stage].ranks[0], places[stage + 1].ranks[0], passing))
    return max(found)


@pytest.mark.parametrize("seed", range(8))
def test_a_light_cut_is_the_best_of_all_cuts_of_its_order(seed: int) -> None:
    cuts = cuts_of(pipelines(narrow_here_and_there(Random(seed)), 8, 8, cluster=joined_by(0.05)))
    order = list(range(len(cuts.atoms)))
    for num_stages in range(2, 6):
        even = tuple(bottleneck_partition([list(cuts.shares_ns)] * num_stages) or ())
        every = (
            tuple(sum(end <= atom for end in ends) for atom in order)
            for ends in combinations(range(1, len(order)), num_stages - 1)
        )
        least = min(longest_ns(cuts, order, each) for each in every)
        found = low_traffic_partition(cuts, order, even) or even
        assert sorted(set(found)) == list(range(num_stages))
        assert longest_ns(cuts, order, found) <= least * (1 + 2 * NEAR_ENOUGH)


def test_where_links_are_fast_there_is_no_other_cut() -> None:
    cuts = cuts_of(pipelines(narrow_here_and_there(Random(0)), 8, 8, cluster=joined_by(50.0)))
    even = tuple(bottleneck_partition([list(cuts.shares_ns)] * 4) or ())
    assert low_traffic_partition(cuts, list(range(len(cuts.atoms))), even) is None
