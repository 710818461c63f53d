"""A profile, devices and a batch alone: a ladder of rungs, the simplest near the fastest, under any limit."""

from itertools import groupby

import pytest

from costmodel.architectures.command import make
from costmodel.zoo.generated import generate
from planner.answer.decide import plan
from planner.checker import check_plan
from planner.plan import Plan
from planner.plan.rung import RUNGS, rung
from planner.question.effort import Effort
from planner.question.problem import SIMPLICITY, Problem

BATCH = 16


@pytest.fixture(scope="module", name="answers")
def answered() -> list[tuple[Plan, str]]:
    effort = Effort(60.0, deterministic_limit=0.01)
    return [
        (plan(Problem(generate(name), None, 4, BATCH, target=target, effort=effort)), target)
        for name in ("random:12:3", "random:20:1")
        for target in ("executor", "any")
    ]


def runs(runs_on: tuple[str, ...], target: str) -> bool:
    return target in runs_on if target == "executor" else bool(runs_on)


def test_the_chosen_plan_is_a_rung_that_its_target_runs_near_the_fastest_of_them(
    answers: list[tuple[Plan, str]],
) -> None:
    for found, target in answers:
        chosen = [each for each in found.rungs if each.why.startswith("chosen")]
        assert [each.strategy for each in chosen] == [rung(found)]
        assert chosen[0].step_time_ns == found.prediction.step_time_ns
        fastest = min(each.step_time_ns for each in found.rungs if runs(each.runs_on, target))
        assert found.prediction.step_time_ns <= (1 + SIMPLICITY) * fastest
        assert found.search.best_step_time_ns <= fastest


def test_no_strategy_of_fewer_or_simpler_rungs_is_as_near_the_fastest(answers: list[tuple[Plan, str]]) -> None:
    def simplicity(strategy: str) -> tuple[int, list[int]]:
        ranks = [RUNGS.index(name) for name in strategy.split("+")]
        return len(ranks), sorted(ranks, reverse=True)

    for found, target in answers:
        near = [e for e in found.rungs if e.step_time_ns <= found.search.best_step_time_ns * (1 + SIMPLICITY)]
        own = [e.strategy for e in near if runs(e.runs_on, target) and "recompute" not in e.why]
        assert simplicity(rung(found)) <= min(map(simplicity, own), default=simplicity(rung(found)))


def test_a_strategys_first_line_is_what_the_target_runs_and_only_a_faster_one_follows(
    answers: list[tuple[Plan, str]],
) -> None:
    for found, target in answers:
        ordered = sorted(enumerate(found.rungs), key=lambda item: (item[1].strategy, item[0]))
        for _, lines in groupby(ordered, key=lambda item: item[1].strategy):
            first, *others = [each for _, each in lines]
            for other in others:
                assert runs(first.runs_on, target)
                assert not runs(other.runs_on, target)
                assert other.step_time_ns < first.step_time_ns


def test_a_limit_that_ends_before_anything_fits_leaves_a_plan_that_fits() -> None:
    profile = make("llama3-8b", "h100-sxm-80", (1, 2))[0]
    found = plan(Problem(profile, None, 64, 256, target="any", effort=Effort(time_limit_s=0.05)))
    assert check_plan(found, profile.graph) == ()
    assert found.search.limited_by == "time limit"
