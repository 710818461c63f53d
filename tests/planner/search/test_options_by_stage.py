"""Options that differ by stage: what a search finds where stages want other ZeRO or replicas than the rest."""

from dataclasses import replace

import pytest

from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.stages.config import StageConfig
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.loop import PortfolioSearch
from planner.search.proposers.balanced_sweep import FirstLook
from planner.search.proposers.enumeration import EveryCut
from planner.search.proposers.options_by_stage import OptionsByStage, configs_like
from planner.search.proposers.provers import Bounds
from planner.search.proposers.replicas_by_stage import ReplicasByStage
from planner.search.space.family_work import Families
from planner.search.state.result import SearchOutcome
from planner.search.subsolver import Subsolver
from tests.properties.by_stage_promises import wrong_claim
from tests.support.random_profiles import profile_of

BY_STAGE = (FirstLook, ReplicasByStage, OptionsByStage, Bounds)


def two_stages(space: Space, memory_limit_bytes: int | None = None, num_devices: int = 4) -> Problem:
    """The second operator takes three times as long as the first, and a step of the optimizer takes long."""
    whole = WholeModelMeasurements((1, 2, 4), accumulate_ns=0, optimizer_ns=8000)
    profile = profile_of([1000, 3000], [(0, 1)], latency_ns=0, tensor_bytes=10, whole=whole)
    return Problem(
        profile, None, num_devices, 12, 1, target="any", space=space, effort=Effort(60.0, 0.0),
        memory_limit_bytes=memory_limit_bytes,
    )  # fmt: skip


def searched(problem: Problem, table: tuple[type[Subsolver], ...] = BY_STAGE) -> SearchOutcome:
    return PortfolioSearch(problem, None, table).run()


def test_three_replicas_of_a_stage_divide_optimizer_states_beside_a_stage_of_one() -> None:
    problem = two_stages(Space(chunks=1, recompute="none", offload="none"))
    best, before = searched(problem).pool.best, searched(problem, (FirstLook, EveryCut)).pool.best
    assert [place.config.data for place in best.candidate.places] == [1, 3]
    assert best.candidate.places[1].config.zero
    assert best.step_time_ns < 0.99 * before.step_time_ns


def test_where_zero_is_fixed_replicas_by_stage_need_no_plan_of_single_devices() -> None:
    problem = two_stages(Space(chunks=1, zero=1, recompute="none", offload="none"))
    assert [place.config.data for place in searched(problem).pool.best.candidate.places] == [1, 3]


def test_no_bound_of_families_is_told_of_a_plan_that_none_of_them_holds() -> None:
    outcome = searched(two_stages(Space(chunks=1, recompute="none", offload="none")))
    assert outcome.bound.scope == "work / devices"
    assert outcome.bound.ns == 12 * 3 * 4000 // 4 <= outcome.pool.best.step_time_ns


@pytest.mark.parametrize("fixed", ["zero", "recompute", "offload"])
def test_ways_to_run_a_stage_differ_in_one_option_and_keep_to_what_is_fixed(fixed: str) -> None:
    plain = {"zero": 0, "recompute": "none", "offload": "none"}
    families = Families(two_stages(Space(**{fixed: plain[fixed]})))  # type: ignore[arg-type]
    own = StageConfig(data=2)
    found = list(configs_like(families, own))
    assert found
    assert own not in found
    for config in found:
        assert getattr(config, fixed) == plain[fixed]
        assert own in (replace(config, **{name: value}) for name, value in plain.items())  # type: ignore[arg-type]


def test_no_bound_is_above_a_plan_whose_stages_differ() -> None:
    assert [wrong_claim(seed) for seed in (3, 5)] == ["", ""]
