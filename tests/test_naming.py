"""Naming what the search found of itself must not make the answer worse, nor narrow its scope without a word."""

import pytest

from tests.naming import naming_failures


@pytest.mark.parametrize("start", range(0, 12, 4))
def test_naming_a_choice_of_the_plan_leaves_nothing_slower_and_is_said(start: int) -> None:
    assert naming_failures(range(start, start + 4)) == []
