"""What follows from a plan file by itself: gaps, prices, what a sample is; each as it is worked out by hand."""

from dataclasses import replace

import pytest

from costmodel.stages.config import StageConfig
from planner.plan.gathering import why_out_of_step
from planner.plan.provenance import of_a_sample
from planner.plan.rung import cost_per_million_samples
from tests.support.small_plan import CLUSTER, PLAN


def test_the_models_gap_is_its_objective_over_its_bound_less_one() -> None:
    search = replace(PLAN.search, model_objective_ns=150, model_lower_bound_ns=120)
    assert search.model_gap == pytest.approx(0.25)
    assert replace(search, model_lower_bound_ns=None).model_gap is None


def test_a_gap_above_a_bound_of_nothing_is_all_of_it() -> None:
    assert [replace(PLAN.search, objective=ns, lower_bound_ns=0).gap for ns in (0, 5)] == [0.0, 1.0]
    assert replace(PLAN.search, objective=125, lower_bound_ns=100).gap == 0.25


def test_a_million_samples_cost_the_devices_hours() -> None:
    """Four devices of 2 an hour, 124 ns for 4 samples: 31 s for a million, of 8 / 3600 a second."""
    priced = replace(CLUSTER, devices=(replace(CLUSTER.devices[0], price_per_hour=2.0),))
    assert cost_per_million_samples(replace(PLAN, cluster=priced)) == pytest.approx(0.031 * 8 / 3600)
    assert cost_per_million_samples(PLAN) is None


@pytest.mark.parametrize(
    ("said", "taken"), [(7, 7), (1, 1), (0, 0), (-3, 0), (2**63, 0), (2**63 - 1, 2**63 - 1), ("x", 0)]
)
def test_a_sample_has_what_the_plan_says_where_that_can_be(said: object, taken: int) -> None:
    assert of_a_sample(replace(PLAN, extra={"sample": {"tokens": said}}), "tokens") == taken
    assert of_a_sample(PLAN, "tokens") == 0


def test_replicas_that_gather_together_need_as_many_micro_batches_each() -> None:
    """Two replicas under ZeRO-3: of three micro-batches one of them has none to gather for."""
    config = StageConfig(data=2, zero=3)
    stages = [replace(stage, ranks=(2 * i, 2 * i + 1), config=config) for i, stage in enumerate(PLAN.stages)]
    assert why_out_of_step(stages, 2) == ""
    assert "micro-batches" in why_out_of_step(stages, 3)
