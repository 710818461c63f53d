"""Plans that the planners find are legal, and an operator moved to another stage is always noticed."""

from dataclasses import replace
from random import Random

import pytest

from costmodel.model.profile import Profile
from planner.answer.decide import plan
from planner.checker import check_plan
from planner.plan import Plan
from tests.support.pipelines import pipelines
from tests.support.random_profiles import branches, random_profile, u_net

PROFILES = {
    "branches": branches(2, 3),
    "u-net": u_net(4),
    "random": random_profile(Random(3), 10),
    "tied ends": random_profile(Random(4), 8, tied=[(7, 0)]),
    "frozen start": random_profile(Random(5), 8, frozen=frozenset({0})),
    "in place": random_profile(Random(6), 8, in_place=frozenset({3})),
}


def found(profile: Profile, planner: str) -> Plan:
    return plan(pipelines(profile, 3, 8, optimizer="adam", planner=planner, deterministic_limit=0.05))


@pytest.mark.parametrize("name", PROFILES)
def test_a_chain_plan_is_legal_and_no_operator_can_be_moved_unseen(name: str) -> None:
    profile, rng = PROFILES[name], Random(0)
    legal = found(profile, "chain")
    assert check_plan(legal, profile.graph) == ()
    for source, stage in enumerate(legal.stages):
        for operator in stage.operators if len(stage.operators) > 1 else ():
            target = rng.choice([t for t in range(len(legal.stages)) if t != source])
            stages = list(legal.stages)
            stages[source] = replace(stage, operators=tuple(o for o in stage.operators if o != operator))
            stages[target] = replace(stages[target], operators=(*stages[target].operators, operator))
            problems = check_plan(replace(legal, stages=tuple(stages)), profile.graph)
            assert {p.kind for p in problems} & {"edge", "cycle", "operator"}, (operator, source, target)


@pytest.mark.parametrize("name", ["branches", "u-net"])
def test_a_graph_plan_is_legal(name: str) -> None:
    assert check_plan(found(PROFILES[name], "ours"), PROFILES[name].graph) == ()
