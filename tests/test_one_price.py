"""One road, one price: search, flags and pins price the same candidate alike, and as its parts add up."""

import pytest

from tests.one_price import candidate_failures, search_failures


@pytest.mark.parametrize("start", range(0, 95, 19))
def test_a_random_candidate_costs_the_same_by_every_entry_and_the_sum_of_its_parts(start: int) -> None:
    assert [line for seed in range(start, start + 19) for line in candidate_failures(seed)] == []


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_of_the_free_search_given_back_is_the_same_plan(seed: int) -> None:
    assert search_failures(seed) == []
