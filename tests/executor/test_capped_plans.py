"""Plans that fit within a cap by their word stay within it when they run (``benchmarks.reliability --only caps``)."""

import pytest

from planner.plan.fitting import DOES_NOT_FIT, FITS, MAY_NOT_FIT
from tests.properties.capped_plans import CappedCase, cases, judged


def test_what_fits_under_a_cap_stays_within_it_when_it_runs():
    found = list(cases(1))
    assert [each.line() for each in found if each.word == FITS and each.held > 1] == []


@pytest.mark.parametrize(
    ("word", "part", "held", "wrong"),
    [
        (FITS, 0.8, 1.001, 1),  # said to fit, and does not
        (FITS, 0.8, 0.9, 0),
        (MAY_NOT_FIT, 0.8, 1.1, 0),  # which nobody knows to fit
        (MAY_NOT_FIT, 0.8, 0.9, 2),  # one of two is too many, and the case itself
        (DOES_NOT_FIT, 0.8, 0.0, 0),
        (DOES_NOT_FIT, 1.05, 0.0, 2),  # the plan that gave the cap fits
    ],
)
def test_words_are_judged_by_what_was_seen_to_fit(word, part, held, wrong):
    assert len(judged([CappedCase(0, 1.0, FITS, 1.0), CappedCase(1, part, word, held)])) == wrong
