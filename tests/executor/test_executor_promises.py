"""Altered plans and misused loops on real ranks: refused by name or exact, never hung; the full counts are elsewhere.

``python -m benchmarks.reliability --full --only altered-plans`` (or ``misused-loops``) runs all.
"""

import pytest

from tests.properties.altered_plans import altered_plan_failures
from tests.properties.misuse_runs import problems_of

SAMPLE = [
    ("nothing", -1),
    ("closes_early", 0),
    ("returns_early_without_close", 1),
    ("fails_in_its_loss", -1),
    ("skips_a_step", 1),
    ("freezes", 0),
    ("brings_a_short_batch", 1),
    ("evaluates_alone", 0),
    ("clips_alone", 1),
    ("optimizes_twice", -1),
    ("crosses_two_pipelines", 0),
]


def test_an_altered_plan_is_refused_by_every_rank_or_runs_exactly(tmp_path):
    assert altered_plan_failures(30, str(tmp_path)) == []


@pytest.mark.parametrize(("name", "victim"), SAMPLE, ids=[f"{name}-{victim}" for name, victim in SAMPLE])
def test_a_misused_loop_trains_as_a_plain_one_or_ends_in_an_error_on_every_rank(name, victim):
    assert problems_of(name, victim) == []
