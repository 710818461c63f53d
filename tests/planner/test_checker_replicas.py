"""Checking the first of equal replicas finds what checking all finds, and no plan is judged by it that differs."""

from dataclasses import replace
from random import Random

import pytest

import planner.checker
from planner.answer.decide import plan
from planner.checker import check_plan
from planner.checker.replicas import first_replica
from planner.checker.steps import Layout
from planner.plan import Plan
from planner.question.space import Space
from tests.support.pipelines import PIPELINES, pipelines
from tests.support.random_profiles import branches, random_profile

PROFILES = {
    "branches": branches(2, 3),
    "random": random_profile(Random(3), 10),
    "tied ends": random_profile(Random(4), 8, tied=[(7, 0)]),
}


def replicated(name: str) -> Plan:
    space = Space(**{**{field: getattr(PIPELINES, field) for field in PIPELINES.__slots__}, "data": 3, "stages": 2})
    return plan(pipelines(PROFILES[name], 6, 12, space=space, optimizer="adam", deterministic_limit=0.01))


@pytest.mark.parametrize("name", PROFILES)
def test_changed_plans_of_replicas_are_judged_as_when_every_replica_is_checked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, legal = PROFILES[name], replicated(name)
    assert first_replica(legal, Layout.of(legal)) is not None
    assert check_plan(legal, profile.graph) == ()
    changed = [change(legal, Random(seed)) for seed in range(60)]
    short = [check_plan(each, profile.graph) for each in changed]
    monkeypatch.setattr(planner.checker, "first_replica", lambda *_: None)
    assert short == [check_plan(each, profile.graph) for each in changed]
    assert sum(map(bool, short)) > len(short) // 2


def change(legal: Plan, rng: Random) -> Plan:
    """Return a plan in which something of one rank, of all replicas alike, or of the prediction is different."""
    kind = rng.choice(("one rank", "all replicas", "prediction", "ranks"))
    if kind == "prediction":
        peaks = list(legal.prediction.peak_memory_bytes)
        peaks[rng.randrange(len(peaks))] += 1
        return replace(legal, prediction=replace(legal.prediction, peak_memory_bytes=tuple(peaks)))
    if kind == "ranks":
        stage = rng.randrange(len(legal.stages))
        ranks = list(legal.stages[stage].ranks)
        rng.shuffle(ranks)
        stages = list(legal.stages)
        stages[stage] = replace(stages[stage], ranks=tuple(ranks))
        return replace(legal, stages=tuple(stages))
    orders = [list(order) for order in legal.orders]
    row = legal.stages[rng.randrange(len(legal.stages))].ranks
    a, b = (rng.randrange(len(orders[row[0]])) for _ in range(2))
    for rank in row if kind == "all replicas" else row[1:2]:
        orders[rank][a], orders[rank][b] = orders[rank][b], orders[rank][a]
    return replace(legal, orders=tuple(map(tuple, orders)))
