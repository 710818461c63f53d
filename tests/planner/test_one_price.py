"""One road, one price: search, flags and pins price the same candidate alike, and as its parts add up."""

import pytest

from costmodel.stages.config import StageConfig
from planner.question.problem import Problem
from planner.search.space.family import Family
from planner.search.state.prepared import PreparedProblem
from tests.properties.one_price import QUICK, candidate_failures, hosts, search_failures, slower
from tests.support.random_profiles import chain


@pytest.mark.parametrize("start", range(0, 40, 20))
def test_a_random_candidate_costs_the_same_by_every_entry_and_the_sum_of_its_parts(start: int) -> None:
    assert [line for seed in range(start, start + 20) for line in candidate_failures(seed)] == []


@pytest.mark.parametrize("seed", [1, 3])
def test_a_plan_of_the_free_search_given_back_is_the_same_plan(seed: int) -> None:
    assert search_failures(seed) == []


def test_a_place_on_the_faster_type_of_device_counts_as_faster() -> None:
    profile = chain(6)
    others = (slower(profile),)
    problem = Problem(profile, hosts(profile), 4, 8, 1, other_profiles=others, target="any", effort=QUICK)
    prepared = PreparedProblem(problem)
    assert prepared.cuts(Family(StageConfig(), 1)).speeds == (2.0, 2.0, 1.0, 1.0)
    assert prepared.cuts(Family(StageConfig(data=2), 1)).speeds == (2.0, 1.0)
