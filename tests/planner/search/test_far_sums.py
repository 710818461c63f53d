"""Bounds know that replicas on several hosts sum their gradients over the slow link between these."""

from dataclasses import replace
from itertools import accumulate, combinations, pairwise, product
from random import Random

import pytest

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.machines.collectives import best_rate
from costmodel.machines.typical import typical_cluster
from costmodel.stages.config import StageConfig
from planner.candidate.candidate import Candidate, StagePlacement
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.solvers.lattice.replicas import ReplicasBound
from planner.search.solvers.relaxation.build import added_units, cut_data
from planner.search.solvers.relaxation.data import NO_SUMS, FarSums
from planner.search.solvers.relaxation.far_sums import far_sums, in_units
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem
from tests.support.random_profiles import profile_of

NUM_ATOMS = 6


def cuts_on_hosts(seed: int, network_gbs: float = 0.05) -> FamilyPartitions:
    """Return the cuts of a line of operators on two hosts of two devices, replicas open."""
    rng = Random(seed)
    works = [rng.randint(100, 3000) for _ in range(NUM_ATOMS)]
    edges = list(pairwise(range(NUM_ATOMS)))
    profile = profile_of(works, edges, tensor_bytes=10, parameter_bytes=rng.choice((100, 400)))
    groups = (LinkGroup("host", 2, 100.0, 0), LinkGroup("network", 0, network_gbs, 300))
    name = profile.device.name
    cluster = Cluster((DeviceType(name, 2**40, "cpu"),), (Host(name, 2), Host(name, 2)), groups)
    space = Space(chunks=1, zero=0, recompute="none", offload="none", tensor=1, context=1)
    prepared = PreparedProblem(Problem(profile, cluster, 4, 8, 1, optimizer="none", target="any", space=space))
    return prepared.cuts(Family(StageConfig(), 1))


def best_ns(cuts: FamilyPartitions) -> int:
    """Return the best step of every cut with every number of replicas a stage, hosts filled one after the other."""
    found = []
    for count in range(1, 5):
        for begins in combinations(range(1, NUM_ATOMS), count - 1):
            stages = tuple(sum(first <= atom for first in begins) for atom in range(NUM_ATOMS))
            for sizes in product(range(1, 5), repeat=count):
                if sum(sizes) <= 4:
                    rows = [tuple(range(*ends)) for ends in pairwise(accumulate(sizes, initial=0))]
                    places = tuple(StagePlacement(StageConfig(data=len(row)), row) for row in rows)
                    found.append(cuts.evaluator.evaluate(Candidate(stages, places, 1, "graph-1f1b")).step_time_ns)
    return min(found)


def bound_ns(cuts: FamilyPartitions, far: FarSums, high_ns: int) -> int:
    bound = ReplicasBound(cut_data(cuts, 0, binding=False), 4, added_units(cuts), far, sharded=False)
    return max((each.bound_ns for each in bound.rise(high_ns)), default=0)


@pytest.mark.parametrize("seed", range(4))
def test_sums_over_the_slow_link_raise_the_bound_of_replicas_by_stage_and_no_plan_is_quicker(seed: int) -> None:
    cuts = cuts_on_hosts(seed)
    best, far = best_ns(cuts), in_units(cuts, far_sums(cuts))
    assert far.together == 2
    assert 0 < bound_ns(cuts, NO_SUMS, 2 * best) < bound_ns(cuts, far, 2 * best) <= best


@pytest.mark.parametrize("hosts", [2, 4])
def test_no_ranks_on_several_hosts_sum_a_byte_sooner_than_two_whole_hosts(hosts: int) -> None:
    fast, rng = typical_cluster("h100-sxm-80", 8 * hosts), Random(hosts)
    network = LinkGroup("network", 0, 1.25, 20_000, shared_gbs=1.25)
    cluster = replace(fast, groups=(fast.groups[0], network))
    for name in ("all_reduce", "reduce_scatter", "all_gather"):
        least = best_rate(cluster, name, tuple(range(16)))
        for _ in range(40):
            ranks = tuple(sorted(rng.sample(range(8 * hosts), rng.randint(9, 8 * hosts))))
            assert best_rate(cluster, name, ranks) >= least * (1 - 1e-9)


def test_a_network_as_fast_as_devices_own_links_tells_nothing() -> None:
    assert far_sums(cuts_on_hosts(0, network_gbs=100.0)) == NO_SUMS
