"""`--exact`: equal to brute force on small problems, never more claimed than is proved, and clear refusals."""

from dataclasses import replace

import pytest

from costmodel.errors import NoPlanFits, UsageError
from planner.answer.decide import plan
from planner.plan.limited_by import LimitedBy
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from tests.properties.exact_promises import (
    PATIENT,
    default_failures,
    exact_failures,
    hurried_failures,
    random_case,
    solved_here,
)
from tests.support.random_profiles import chain, profile_of, u_net

CHAIN = Problem(chain(5), None, 3, 8, 1, space=Space(data=1, chunks=1), exact=True)


@pytest.mark.parametrize("start", [0])
def test_a_proved_plan_is_as_fast_as_the_best_of_brute_force(start: int) -> None:
    cases = {seed: random_case(seed) for seed in range(start, start + 10)}
    assert [(seed, line) for seed, case in cases.items() for line in exact_failures(case)] == []


@pytest.mark.parametrize("start", [60])
def test_a_proof_without_time_claims_no_more_than_it_has_proved(start: int) -> None:
    cases = {seed: random_case(seed) for seed in range(start, start + 5)}
    assert [(seed, line) for seed, case in cases.items() for line in hurried_failures(case)] == []


def test_a_search_without_a_proof_is_bounded_below_the_best_of_brute_force() -> None:
    cases = {seed: random_case(seed) for seed in range(80, 83)}
    assert [(seed, line) for seed, case in cases.items() for line in default_failures(case)] == []


def test_a_proof_by_the_solvers_own_process_says_what_it_ranges_over() -> None:
    case = random_case(5)
    found = plan(replace(case.problem, exact=True, effort=PATIENT)).search
    assert (found.status, found.lower_bound_ns, found.gap, found.limited_by) == ("optimal", case.best_ns, 0.0, "proved")
    assert "all configured alike" in found.scope
    assert "replicas by stage" not in found.scope


def test_the_fastest_plan_is_written_and_none_that_is_simpler_and_slower() -> None:
    """A second stage for an operator of half a per cent of the work: the default prefers a single device."""
    profile = profile_of([100_000, 400], [(0, 1)], latency_ns=0, tensor_bytes=0)
    problem = Problem(profile, None, 2, 8, 1, space=Space(data=1, chunks=1))
    with solved_here():
        assert len(plan(problem).stages) == 1
        assert len(plan(replace(problem, exact=True)).stages) == 2


def test_families_that_the_model_does_not_know_keep_their_bound() -> None:
    """With several stages a place all work is shared evenly, as far as is known: no plan of this chain is that good."""
    with solved_here():
        found = plan(replace(CHAIN, space=Space(data=1))).search
        known = plan(CHAIN).search
    assert (known.status, known.limited_by) == ("optimal", "proved")
    assert (found.status, found.limited_by) == ("bounded", LimitedBy.EXHAUSTED)
    assert found.lower_bound_ns is not None
    assert found.lower_bound_ns < known.objective == found.best_step_time_ns


def test_a_memory_limit_that_nothing_keeps_is_proved_to_be_too_small() -> None:
    with solved_here(), pytest.raises(NoPlanFits, match="proved for all cuts between 5 atoms"):
        plan(replace(CHAIN, memory_limit_bytes=20_000))


def test_no_time_leaves_a_plan_with_an_honest_bound() -> None:
    found = plan(replace(CHAIN, effort=Effort(0.0))).search
    assert found.limited_by == "time limit"
    assert found.lower_bound_ns is None or found.lower_bound_ns < found.objective


def test_without_work_of_the_solver_nothing_is_proved() -> None:
    found = plan(replace(CHAIN, effort=Effort(30.0, 0.0))).search
    assert found.status == "bounded"
    assert found.lower_bound_ns is not None
    assert found.lower_bound_ns < found.objective


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (replace(CHAIN, profile=chain(101)), r"up to 100 pieces, and this one has 101; .* drop --exact"),
        (replace(CHAIN, profile=u_net(5), num_devices=8), r"up to 6 places, and 8 are possible; give --max-stages 6"),
    ],
)
def test_what_is_too_large_for_a_proof_is_refused_with_the_way_out(problem: Problem, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        plan(problem)
    assert plan(replace(problem, exact=False, effort=Effort(0.0))).search.status != "optimal"


def test_a_proof_of_another_planner_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="not of chain"):
        replace(CHAIN, planner="chain")
