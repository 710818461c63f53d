"""Shard groups smaller than all replicas: what they hold, send and refuse, and how a configuration says them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.errors import InvalidInput
from costmodel.files import Node
from costmodel.machines.collectives import all_gather_ns, all_reduce_ns, reduce_scatter_ns
from costmodel.stages.config import CONFIG, StageConfig
from costmodel.stages.costs import StageCost, largest
from costmodel.stages.strategies import StrategyModel, TrainingJob
from tests.support.gpt_graph import cluster, gpt

RANKS, HOST, ACROSS = tuple(range(32)), tuple(range(8)), (0, 8, 16, 24)
MACHINES = cluster(32)
MODEL = StrategyModel(gpt(1, 64, 32, 4), MACHINES, 1, TrainingJob(overlap=False))
LAYER = range(1, 11)


def stage(zero: int, shard_group: int = 0) -> StageCost:
    return MODEL.stage(LAYER, StageConfig(data=32, zero=zero, shard_group=shard_group), RANKS)


def test_zero_3_gathers_and_scatters_within_a_group_and_sums_its_parts_among_groups_once_a_step() -> None:
    plain, grouped = MODEL.stage(LAYER, StageConfig(data=32), RANKS), stage(3, 8)
    weights = dict(plain.memory_terms)["parameters"]
    gather, scatter = all_gather_ns(MACHINES, HOST, weights), reduce_scatter_ns(MACHINES, HOST, weights)
    assert largest(grouped.forward_ns) == largest(plain.forward_ns) + gather
    assert largest(grouped.backward_input_ns) == largest(plain.backward_input_ns) + gather
    assert largest(grouped.backward_weight_ns) == largest(plain.backward_weight_ns) + scatter
    assert grouped.reduce_ns == all_reduce_ns(MACHINES, ACROSS, -(-weights // 8))
    assert stage(3).reduce_ns == 0


def test_zero_1_scatters_and_gathers_within_a_group_and_sums_among_groups() -> None:
    grouped, weights = stage(1, 8), dict(stage(0).memory_terms)["gradients"]
    sums = all_reduce_ns(MACHINES, ACROSS, -(-weights // 8))
    assert grouped.reduce_ns == reduce_scatter_ns(MACHINES, HOST, weights) + sums
    gathered = grouped.optimizer_ns - stage(1).optimizer_ns
    whole = all_gather_ns(MACHINES, RANKS, weights) - all_gather_ns(MACHINES, HOST, weights)
    assert gathered >= -whole


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_rank_holds_the_part_of_its_group(zero: int) -> None:
    """Of states of 8 ranks as ZeRO over 8 replicas has them."""
    of_eight = MODEL.stage(LAYER, StageConfig(data=8, zero=zero), HOST)
    assert stage(zero, 8).memory_terms == of_eight.memory_terms
    assert stage(zero, 32) == stage(zero)


@given(st.integers(0, 3), st.sampled_from([2, 4, 8, 16]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_a_configuration_is_what_it_was_after_json(zero: int, data: int, shard_group: int, context: int) -> None:
    try:
        config = StageConfig(data=data, context=context, zero=zero, shard_group=shard_group)
    except InvalidInput:
        assert zero
        assert data % shard_group or shard_group * context == 1
        return
    assert config.shard_group in (0, shard_group)
    assert CONFIG.read(Node(CONFIG.write(config), "", "f")) == config
    assert config.num_sharers == context * (shard_group if zero else data)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": 8, "zero": 3, "shard_group": 3}, "divisors of config.data, which is 8"),
        ({"data": 8, "zero": 3, "shard_group": 1}, "at least two ranks"),
        ({"data": 8, "zero": 3, "expert": 8, "shard_group": 4}, "which expert divides"),
        ({"data": 8, "shard_group": 4}, "goes with zero 1, 2 or 3"),
        ({"data": 8, "zero": 1, "shard_group": "4"}, "a whole number is needed"),
    ],
)
def test_what_no_group_is_is_refused_by_name(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        CONFIG.read(Node(given, "/stages/0/config", "plan.json"))
