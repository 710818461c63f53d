"""The planner's bounds are below every simulated step time: brute force over all partitions of tiny graphs."""

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.machines.links import LinkClass, Links, SizeRange
from costmodel.model.profile import Profile
from costmodel.model.whole_model import WholeModelMeasurements
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import numbered
from planner.question.pins import Group, Pins
from planner.search.solvers.relaxation.build import cut_data
from planner.search.solvers.relaxation.closed_form import closed_form_ns
from planner.search.solvers.relaxation.data import CutData
from planner.search.solvers.relaxation.transfers import least_transfer_ns
from planner.search.space.partitions import FamilyPartitions
from simulator.bounds import lower_bound_ns
from tests.support.pipelines import cuts_of, pipelines, priced, with_limit
from tests.support.random_profiles import profile_of, random_profile
from tests.support.solve_cut import solve

FUSED = ("graph-1f1b", "graph-eager-1f1b", "1f1b", "eager-1f1b", "gpipe")


def all_partitions(cuts: FamilyPartitions) -> set[tuple[int, ...]]:
    """Every partition into at most the allowed number of stages whose stage graph has no cycle."""
    atoms, most = cuts.atoms, cuts.num_stages
    found = (numbered(atoms, groups) for groups in product(range(most), repeat=len(atoms)))
    return {partition for partition in found if partition is not None}


def brute_force(cuts: FamilyPartitions) -> Evaluated:
    candidates = [
        cuts.evaluate(p, name, line=line)
        for p in sorted(all_partitions(cuts))
        for name in FUSED
        for line in (False, True)
    ]
    return min(candidates, key=lambda c: c.sort_key)


def proved_ns(data: CutData) -> int:
    found = solve(data)
    assert found[-1]["status"] == "OPTIMAL"
    return max(int(str(f["units"])) for f in found if f["kind"] == "bound") * data.unit_ns


def tiny(seed: int) -> Profile:
    rng = Random(seed)
    size = rng.randint(3, 6)
    whole = WholeModelMeasurements(
        (100, 200, 400), accumulate_ns=rng.choice((0, 700)), optimizer_ns=rng.choice((0, 5000))
    )
    frozen = frozenset(rng.sample(range(size - 1), 1)) if rng.random() < 0.3 else frozenset()
    tied = [(0, size - 1)] if rng.random() < 0.3 else []
    profile = random_profile(
        rng, size, whole=whole, tied=tied, latency_ns=rng.choice((0, 300, 2000)), tensor_bytes=rng.choice((10, 900)),
        host_ns=rng.choice((0, 200, 900)),
    )  # fmt: skip
    if not frozen:
        return profile
    operators, times = list(profile.graph.operators), list(profile.times)
    for i in frozen:  # a frozen source only: what follows a trained operator trains
        if not profile.graph.predecessors[i]:
            operators[i] = replace(operators[i], trainable=False)
            times[i] = replace(times[i], backward_input_ns=(0, 0, 0), backward_weight_ns=(0, 0, 0))
    tensors = tuple(
        replace(t, gradient=operators[profile.graph.index[t.producer]].trainable) for t in profile.graph.tensors
    )
    return replace(
        profile, graph=replace(profile.graph, operators=tuple(operators), tensors=tensors), times=tuple(times)
    )


@pytest.mark.parametrize("seed", range(16))
def test_bounds_are_below_the_best_of_all_partitions_and_orders(seed: int) -> None:
    rng = Random(1000 + seed)
    devices, batch, optimizer = rng.choice((2, 3)), rng.choice((2, 4, 8)), rng.choice(("none", "adam"))
    cuts = cuts_of(pipelines(tiny(seed), devices, batch, optimizer=optimizer))
    best = brute_force(cuts)
    data = cut_data(cuts, 0, binding=False)
    assert data.unit_ns == 1
    closed, proved = closed_form_ns(data), proved_ns(data)
    assert 0 < closed <= best.step_time_ns
    assert 0 < proved <= best.step_time_ns


@pytest.mark.parametrize("seed", range(8))
def test_the_proved_bound_is_no_stronger_than_that_of_the_best_partition_alone(seed: int) -> None:
    """The cut model's objective of a partition never exceeds the simulator's bound for that partition."""
    cuts = cuts_of(pipelines(tiny(50 + seed), 3, 4))
    least = min(lower_bound_ns(priced(cuts, p).costs, 4, "fused").ns for p in sorted(all_partitions(cuts)))
    assert proved_ns(cut_data(cuts, 0, binding=False)) <= least


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("schedule", ["graph-1f1b", "1f1b", "gpipe"])
def test_bounds_under_a_memory_limit_are_below_every_plan_that_fits(seed: int, schedule: str) -> None:
    profile = random_profile(Random(seed), 5)
    free = pipelines(profile, 3, 4, schedule=schedule)
    cuts = cuts_of(free)
    partitions = sorted(all_partitions(cuts))
    peaks = sorted({max(cuts.evaluator.simulate(cuts.candidate(p, schedule, line=False)).times.peak_memory_bytes)
                    for p in partitions})  # fmt: skip
    for limit in (peaks[0], peaks[len(peaks) // 2]):
        limited = cuts_of(with_limit(free, limit))
        best = min((limited.evaluate(p, schedule) for p in partitions), key=lambda c: c.sort_key)
        assert best.fits
        assert proved_ns(cut_data(limited, 0, binding=True)) <= best.step_time_ns


@pytest.mark.parametrize("seed", range(12))
def test_bounds_with_operators_apart_are_below_every_plan_that_keeps_them_apart(seed: int) -> None:
    rng, profile = Random(2000 + seed), tiny(70 + seed)
    names = [operator.name for operator in profile.graph.operators]
    groups = [rng.sample(names, rng.randint(2, 3)) for _ in range(rng.randint(1, 2))]
    pins = Pins(apart=tuple(Group(tuple(group), "pins") for group in groups))
    cuts = cuts_of(pipelines(profile, rng.choice((2, 3)), 4, pins=pins))
    best, found = brute_force(cuts), solve(cut_data(cuts, 0, binding=False))
    partitions = [tuple(map(int, f["partition"])) for f in found if f["kind"] == "partition"]  # type: ignore[call-overload]
    assert all(cuts.evaluate(partition).fits for partition in partitions)
    assert found[-1]["status"] == ("OPTIMAL" if best.fits else "INFEASIBLE")
    assert not best.fits or max(int(str(f["units"])) for f in found if f["kind"] == "bound") <= best.step_time_ns


def test_the_cut_model_finds_the_optimum_of_its_own_bound() -> None:
    """Four equal branches of one operator on four devices, no latency: nothing waits but the head's stage."""
    profile = profile_of([900, 900, 900, 900, 100], [(i, 4) for i in range(4)], latency_ns=0, tensor_bytes=0)
    cuts = cuts_of(pipelines(profile, 4, 8))
    data = cut_data(cuts, 0, binding=False)
    by_hand = min(lower_bound_ns(priced(cuts, p).costs, 8, "fused").ns for p in sorted(all_partitions(cuts)))
    assert proved_ns(data) <= by_hand
    # One branch shares a stage with the head: 8 (2700 + 300), after 900 forward and before 1800 backward of another.
    assert proved_ns(data) == 8 * 3000 + 900 + 1800


def test_one_stage_takes_all_the_work_in_turn() -> None:
    profile = profile_of([500, 700], [(0, 1)])
    cuts = cuts_of(pipelines(profile, 1, 4))
    data = cut_data(cuts, 0, binding=False)
    assert closed_form_ns(data) == proved_ns(data) == 4 * 3 * 1200
    assert brute_force(cuts).step_time_ns == 4 * 3 * 1200


def test_gradients_of_an_operator_without_backward_are_not_counted() -> None:
    """Its stage may have no backward, and then neither adds gradients up nor updates parameters."""
    profile = profile_of(
        [1000, 1000], [(0, 1)], frozen=frozenset({0}), whole=WholeModelMeasurements((1, 1, 1), 0, 800, 600)
    )
    data = cut_data(cuts_of(pipelines(profile, 2, 2, optimizer="sgd")), 0, binding=False)
    assert data.backward == (0, 2400)  # the trained one adds up its half of the gradients
    assert data.closing == (0, 300)


def test_the_sharing_bound_by_hand() -> None:
    """Two operators of 300 ns in all each, two devices, four micro-batches, latency 50: (4 x 600 + 100) 4 / 7."""
    profile = profile_of([100, 100], [(0, 1)], tensor_bytes=0, latency_ns=50)
    profile = replace(
        profile, graph=replace(profile.graph, tensors=(replace(profile.graph.tensors[0], size_bytes=(1, 1, 1)),))
    )
    data = cut_data(cuts_of(pipelines(profile, 2, 4)), 0, binding=False)
    assert data.levels == (51,)
    assert closed_form_ns(data) == max(-(-(4 * 600 + 102) * 4 // 7), 100 + 4 * 300 + 200)


def test_host_time_counts_at_both_ends_of_an_edge() -> None:
    """Each stage loses 300 in F and 300 in B: 1300 forward before 4 (1300 + 2300), 2300 backward after them."""
    profile = profile_of([1000, 1000], [(0, 1)], latency_ns=0, tensor_bytes=0, host_ns=300)
    cuts = cuts_of(pipelines(profile, 2, 4))
    data = cut_data(cuts, 0, binding=False)
    assert proved_ns(data) == brute_force(cuts).step_time_ns == 1300 + 4 * 3600 + 2300
    assert closed_form_ns(data) == 1000 + 4 * 3600 + 2000  # the other operator's own time, not yet its messages


def test_a_link_that_is_quicker_than_the_measured_one_counts_in_the_bound() -> None:
    """Ranks of one host were measured at 5000 ns; the network between the hosts is given as 10 ns and quick."""
    groups = (LinkGroup("host", 2, 1.0, 5000), LinkGroup("network", 0, 100.0, 10))
    links = Links("gloo", "cpu", 2, {"p2p": LinkClass((SizeRange(0, 5000, 1.0),))})
    cluster = Cluster((DeviceType("tester", 2**40, "cpu"),), (Host("tester", 2, 2),), groups, links=links)
    cuts = cuts_of(pipelines(profile_of([1000] * 4, [(0, 1), (1, 2), (2, 3)]), 4, 4, cluster=cluster))
    assert least_transfer_ns(cuts, 1000) == cluster.p2p_ns(1, 2, 1000) == 20
    assert proved_ns(cut_data(cuts, 0, binding=False)) <= brute_force(cuts).step_time_ns
