"""The search without flags finds what brute force finds on small problems, and its bounds hold."""

import pytest

from tests.properties.search_promises import ratio_or_claim


@pytest.mark.parametrize("seed", [12, 15, 66, 122])
def test_cuts_that_memory_hides_are_found(seed: int) -> None:
    """Problems where little fits: the best needs a cut that is bad without the limit, or other options than its cut."""
    ratio = ratio_or_claim(seed)
    assert isinstance(ratio, float)
    assert ratio <= 1


def test_answers_are_within_a_percent_of_the_best_and_bounds_below_it() -> None:
    for seed in range(4, 8):
        ratio = ratio_or_claim(seed)
        assert not isinstance(ratio, str)
        assert ratio is None or ratio <= 1.01
