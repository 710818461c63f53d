"""Naming what the search found of itself must not make the answer worse, nor narrow its scope without a word."""

import pytest

from tests.properties.naming import naming_failures


@pytest.mark.parametrize("seed", [3, 4, 5, 7])
def test_naming_a_choice_of_the_plan_leaves_nothing_slower_and_is_said(seed: int) -> None:
    assert naming_failures([seed]) == []
