"""Bounds that know slow links between hosts: a line that crosses one waits for its messages, there and back."""

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from planner.plan.rank_order import RANK_ORDER
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.solvers.relaxation.build import cut_data
from planner.search.solvers.relaxation.closed_form import closed_form_ns
from planner.search.solvers.relaxation.data import CutData
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem
from tests.support.random_profiles import profile_of

NUM_ATOMS = 8


def cuts_on_hosts(seed: int, data: int, schedule: str = "auto") -> FamilyPartitions:
    """Two hosts of two devices with a slow network between them, and a line of which some is read further on, too."""
    rng = Random(seed)
    edges = [(i, i + 1) for i in range(NUM_ATOMS - 1)]
    edges += [(i, j) for i in range(NUM_ATOMS) for j in range(i + 2, NUM_ATOMS) if rng.random() < 0.05]
    works = [rng.randint(100, 3000) for _ in range(NUM_ATOMS)]
    profile = profile_of(works, edges, tensor_bytes=rng.choice((900, 9000)), parameter_bytes=1000)
    name = profile.device.name
    groups = (LinkGroup("host", 2, 100.0, 0), LinkGroup("network", 0, rng.choice((0.05, 0.5)), rng.choice((0, 3000))))
    cluster = Cluster((DeviceType(name, 2**40, "cpu"),), (Host(name, 2), Host(name, 2)), groups)
    space = Space(data=data, chunks=1, zero=0, recompute="none", offload="none", tensor=1, context=1,
                  rank_order=",".join(RANK_ORDER))  # fmt: skip
    problem = Problem(profile, cluster, 4, 8, 1, schedule, optimizer="none", target="any", space=space)
    prepared = PreparedProblem(problem)
    return prepared.cuts(next(family for family in prepared.families.all if family == Family(family.config, 1)))


def data_of(cuts: FamilyPartitions) -> CutData:
    return cut_data(cuts, 0, binding=False)


def every_step(cuts: FamilyPartitions) -> list[int]:
    """The steps of all cuts along the line."""
    rows = (begins for count in range(cuts.num_stages) for begins in combinations(range(1, NUM_ATOMS), count))
    partitions = [tuple(sum(first <= atom for first in begins) for atom in range(NUM_ATOMS)) for begins in rows]
    return [each.step_time_ns for one in partitions for each in cuts.evaluate_under(one, cuts.schedules)]


@pytest.mark.parametrize(("seed", "data"), [(0, 2), (3, 1), (4, 2)])
def test_the_bound_knows_slow_links_and_is_below_every_cut(seed: int, data: int) -> None:
    """Places of two replicas have a host each, so that every hop is far; of single devices two are together."""
    cuts = cuts_on_hosts(seed, data)
    asked = data_of(cuts)
    assert asked.together == 2 // data
    assert closed_form_ns(replace(asked, together=0)) < closed_form_ns(asked) <= min(every_step(cuts))


def test_the_bound_of_split_backwards_knows_slow_links_too() -> None:
    cuts = cuts_on_hosts(4, 2, "graph-zb")
    asked = data_of(cuts)
    assert closed_form_ns(replace(asked, together=0)) < closed_form_ns(asked) <= min(every_step(cuts))


def test_one_kind_of_link_parts_nothing() -> None:
    cuts = cuts_on_hosts(0, 1)
    problem = cuts.evaluator.problem
    alike = replace(problem.machines, groups=problem.machines.groups[-1:])
    prepared = PreparedProblem(replace(problem, cluster=alike))
    assert data_of(prepared.cuts(cuts.family)).together == 0
