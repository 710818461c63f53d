"""A backward that is split into I and W never has parameters gathered while gradients are summed: it holds less."""

from dataclasses import replace

import pytest

from costmodel.model.whole_model import SplitRatios
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import Costs, StageCost
from costmodel.stages.strategies import StrategyModel, TrainingJob
from planner.candidate.order import in_split_form
from tests.support.gpt_graph import cluster, gpt


def stage(zero: int, data: int = 2, *, whole_stages: bool = True) -> StageCost:
    """The last stage of a model of layers with a head, as the executor or another trainer divides it."""
    profile = gpt(4, s=16, h=64, v=512)
    priced = StrategyModel(profile, cluster(8, 2048), 1, TrainingJob("fp32", "adam", whole_stages=whole_stages))
    count = len(profile.graph.operators)
    return priced.stage(range(count // 2, count), StageConfig(data=data, zero=zero), range(data), (), 4)


@pytest.mark.parametrize("zero", [2, 3])
def test_a_stage_that_is_split_holds_less_where_replicas_divide_what_they_gather_or_sum(zero):
    assert stage(zero).joint_bytes > 0


@pytest.mark.parametrize(("zero", "data", "whole"), [(0, 2, True), (1, 2, True), (0, 1, True), (3, 2, False)])
def test_elsewhere_both_forms_hold_the_same(zero, data, whole):
    assert stage(zero, data, whole_stages=whole).joint_bytes == 0


def test_orders_decide_which_form_a_stage_has_and_terms_add_up_in_both():
    cost = stage(3)
    costs = Costs((replace(cost, backward=True),) * 2, ())
    apart, whole = in_split_form(costs, {0}, SplitRatios()).stages
    assert apart.static_bytes == cost.static_bytes
    assert whole.static_bytes == cost.static_bytes + cost.joint_bytes
    assert apart.joint_bytes == whole.joint_bytes == 0
    for found in (apart, whole):
        assert sum(size for _, size in found.memory_terms) == found.static_bytes
    assert in_split_form(Costs((whole,), ()), (), SplitRatios()).stages == (whole,)
