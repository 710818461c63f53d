"""What should make the reader of an answer stop, each rule by a plan that breaks it alone."""

from dataclasses import replace
from functools import cache

import pytest

from planner import Effort, Plan, Problem, Space
from planner.answer.decide import plan
from planner.report.summary.alarms import alarms, is_impossible
from planner.report.summary.rates import mfu_causal
from tests.support.described_models import described

SEEN = {"families": 10, "families_seen": 10, "only_fits": False}


@cache
def asked() -> tuple[Problem, Plan]:
    """A plain question, and its answer as if it used 40 % of the devices' peak."""
    space = Space(stages=1, data=4, zero=0)
    problem = Problem(described("gpt2"), None, 4, 32, 4, effort=Effort(300.0, 0.0), space=space)
    return problem, at_share(plan(problem), 0.4)


def at_share(found: Plan, share: float) -> Plan:
    """The same plan in a step that makes it use so much of the peak."""
    known = mfu_causal(found)
    assert known
    step_ns = round(found.prediction.step_time_ns * known / share)
    return replace(found, prediction=replace(found.prediction, step_time_ns=step_ns))


def kinds(problem: Problem, found: Plan, **searched: object) -> list[str]:
    return [alarm.kind for alarm in alarms(problem, found, {**SEEN, **searched})]


@pytest.mark.parametrize(
    ("share", "kind", "impossible"),
    [(0.149, ["share-of-peak"], False), (0.151, [], False), (0.699, [], False), (0.701, ["share-of-peak"], False),
     (1.001, ["share-of-peak"], True)],
)  # fmt: skip
def test_a_share_of_peak_outside_what_jobs_reach_is_said(share: float, kind: list[str], impossible: bool) -> None:
    problem, found = asked()
    found = at_share(found, share)
    assert kinds(problem, found) == kind
    assert is_impossible(found) is impossible


def test_what_the_search_says_of_itself_is_said() -> None:
    problem, found = asked()
    assert kinds(problem, found) == []
    assert kinds(problem, found, only_fits=True) == ["only-fits"]
    assert kinds(problem, found, families_seen=5) == []
    assert kinds(problem, found, families_seen=4) == ["few-families"]
    assert [alarm.kind for alarm in alarms(problem, found, {})] == []


def test_memory_that_may_be_above_the_limit_is_said_with_the_bytes() -> None:
    problem, found = asked()
    upper = max(found.prediction.peak_memory_upper_bytes)
    assert kinds(replace(problem, memory_limit_bytes=upper), found) == []
    assert kinds(replace(problem, memory_limit_bytes=upper - 1), found) == ["may-not-fit"]


def test_idle_devices_and_plans_that_nobody_runs_are_said() -> None:
    problem, found = asked()
    assert kinds(replace(problem, num_devices=8), found) == ["devices-idle"]
    assert kinds(problem, replace(found, runs_on=())) == ["runs-nowhere"]
