"""Mixed clusters: which devices stages take is chosen, whatever the order of hosts; brute force on small ones."""

from dataclasses import replace

import pytest

from costmodel.errors import InvalidInput
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile
from costmodel.stages.config import StageConfig
from planner import Effort, Problem, Space
from planner.answer.decide import plan
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluator
from planner.checker import check_plan
from planner.graph.atoms import Atoms
from planner.plan import Plan, read_plan, write_plan
from planner.search.space.device_permutations import device_permutations
from tests.properties.exact_promises import slower, solved_here
from tests.properties.mixed_promises import failures, twice
from tests.support.random_profiles import branches, chain

FAST, SLOW = 0, 1


def on_hosts(
    profile: Profile, hosts: str, *, gbs: float = 100.0, speeds: tuple[tuple[int, float], ...] = (), **fixed: int
) -> tuple[Problem, Plan]:
    """Plan for hosts of two devices each, f fast and s slow, with links of such a rate between hosts."""
    names = {"f": profile.device.name, "s": "slow"}
    types = tuple(DeviceType(name, 2**40, "cpu") for name in names.values())
    links = (LinkGroup("host", 2, 100.0, 0), LinkGroup("network", 0, gbs, 0))
    cluster = Cluster(types, tuple(Host(names[host], 2) for host in hosts), links, speeds)
    other = replace(profile, device=replace(profile.device, name="slow"), times=twice(profile))
    if "f" not in hosts:
        profile, other = other, profile
    others = (other,) if len(set(hosts)) > 1 else ()
    problem = Problem(
        profile, cluster, cluster.num_devices, 8, 1, optimizer="none", target="any", effort=Effort(30.0, 0.02),
        space=Space(chunks=1, zero=0, recompute="none", **fixed), other_profiles=others,
    )  # fmt: skip
    with solved_here():
        found = plan(problem)
    assert check_plan(found, profile.graph, cluster) == ()
    assert 0 < (found.search.lower_bound_ns or 0) <= found.search.best_step_time_ns
    return problem, found


@pytest.mark.parametrize("profile", [chain(7), branches(2, 3)], ids=["line", "towers"])
def test_the_order_of_hosts_does_not_matter(profile: Profile) -> None:
    steps = {on_hosts(profile, hosts, gbs=1.0, data=1)[1].search.best_step_time_ns for hosts in ("fs", "sf")}
    assert len(steps) == 1


@pytest.mark.parametrize("hosts", ["fs", "sf"])
def test_slow_devices_behind_a_slow_link_are_left_out_wherever_they_stand(hosts: str) -> None:
    problem, found = on_hosts(chain(7), hosts, gbs=0.001)
    used = {found.cluster.device_of(rank).name for rank in range(len(found.orders))}
    assert used == {problem.profile.device.name}
    assert found.search.objective == on_hosts(chain(7), "f")[1].search.objective


def test_a_plan_of_devices_behind_others_says_which_and_is_read_back(tmp_path) -> None:  # type: ignore[no-untyped-def]
    _, found = on_hosts(chain(7), "sf", gbs=0.001)
    assert found.cluster.order == (2, 3)[: len(found.orders)]
    write_plan(tmp_path / "plan.json", found)
    assert read_plan(tmp_path / "plan.json") == found


def test_mixed_devices_beat_one_type_where_the_link_allows() -> None:
    mixed = on_hosts(chain(7), "sf")[1].search.best_step_time_ns
    assert mixed < min(on_hosts(chain(7), host)[1].search.best_step_time_ns for host in ("f", "s"))


def test_a_slow_rank_is_left_out_of_a_pipeline_that_needs_fewer() -> None:
    _, found = on_hosts(chain(2), "ff", speeds=((1, 0.05),), data=1)
    assert len(found.stages) == 2
    assert not found.cluster.speeds


def test_replicas_on_the_smaller_devices_have_to_fit_too() -> None:
    profile = chain(7)
    large, small = DeviceType(profile.device.name, 2**40, "cpu"), DeviceType("small", 1000, "cpu")
    hosts = tuple(Host(device.name, 2) for device in (large, small))
    cluster = Cluster((large, small), hosts, (LinkGroup("all", 0, 1.0, 0),))
    other = replace(profile, device=replace(profile.device, name="small"))
    problem = Problem(profile, cluster, 4, 8, 1, optimizer="none", target="any", other_profiles=(other,))
    pieces = Atoms(profile.graph, tuple((i,) for i in range(7)))
    everywhere = StagePlacement(StageConfig(data=4), (0, 1, 2, 3))
    found = Evaluator(problem, pieces, 1).evaluate(Candidate((0,) * 7, (everywhere,), 1, "graph-1f1b"))
    assert found.copies == 4
    assert not found.fits


def test_few_arrangements_are_all_tried_and_kinds_of_many_stay_together() -> None:
    assert device_permutations([(FAST, 1.0)] * 3) == ((0, 1, 2),)
    assert device_permutations([(SLOW, 1.0), (FAST, 1.0), (FAST, 1.0)]) == ((1, 2, 0), (1, 0, 2), (0, 1, 2))
    many = [(SLOW, 1.0)] * 8 + [(FAST, 1.0)] * 8
    assert device_permutations(many) == ((*range(8, 16), *range(8)), tuple(range(16)))


def test_an_order_of_devices_that_are_not_there_is_refused() -> None:
    whole = Cluster((DeviceType("a", 1),), (Host("a", 2),), (LinkGroup("all", 0, 1.0, 0),))
    with pytest.raises(InvalidInput, match="a rank is on device 2; devices are 0 to 1"):
        replace(whole, order=(2,))
    with pytest.raises(InvalidInput, match="two ranks are on the device 1"):
        replace(whole, order=(1, 1))


def test_operators_that_are_best_on_different_types_leave_bounds_below_the_plan() -> None:
    profile = chain(7)
    problem, _ = on_hosts(profile, "fs")
    other = replace(problem.other_profiles[0], times=slower(profile))
    with solved_here():
        found = plan(replace(problem, other_profiles=(other,))).search
    assert 0 < (found.lower_bound_ns or 0) <= found.best_step_time_ns


def test_plans_are_the_best_of_brute_force() -> None:
    assert failures(2) == []
