"""States of ZeRO-0/1/2/3 are those of Rajbhandari et al., ZeRO, 2020, Figure 1: 7.5 billion parameters, 64 ranks."""

import pytest

from costmodel.errors import InvalidInput
from costmodel.model.work import Work
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import StrategyModel, TrainingJob
from costmodel.stages.strategies.memory import CUBLAS_BYTES
from tests.support.gpt_graph import Gpt, cluster

PARAMETERS = 7_500_000_000
GB = 10**9


def states(zero: int, data: int = 64, **options: object) -> dict[str, int]:
    model = Gpt(8, 8, 1)
    work = Work("matmul", "column", 8, 75_000, 100_000)
    model.add("linear", "layers.0", work, (), (), [("weight", (100_000, 75_000))], 8)
    priced = StrategyModel(model.profile(), cluster(64, 2048), 1, TrainingJob("fp16", "adam"))
    terms = priced.terms(range(1), StageConfig(data=data, zero=zero, **options), range(data), 1, 1)
    names = ("parameters", "gradients", "optimizer", "master_weights")
    return {**{name: getattr(terms, name).point for name in names}, "host": terms.host}


@pytest.mark.parametrize(("zero", "published_gb"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_states_of_a_rank_are_those_of_the_zero_paper(zero, published_gb):
    assert round(sum(states(zero).values()) / GB, 1) == pytest.approx(published_gb, abs=0.05)


def test_mixed_precision_adam_holds_2_2_8_and_4_bytes_a_parameter():
    found = states(0, 1)
    assert [found[name] / PARAMETERS for name in ("parameters", "gradients", "optimizer", "master_weights")] == [
        2,
        2,
        8,
        4,
    ]


def test_offload_moves_gradients_and_states_to_the_host():
    found = states(2, offload="optimizer")
    assert found["parameters"] == 2 * PARAMETERS
    assert found["host"] == 14 * PARAMETERS // 64
    assert found["gradients"] == found["optimizer"] == found["master_weights"] == 0


def test_offload_of_parameters_leaves_no_state_on_the_device():
    found = states(3, offload="parameters")
    assert found == {
        "parameters": 0,
        "gradients": 0,
        "optimizer": 0,
        "master_weights": 0,
        "host": PARAMETERS * 16 // 64,
    }


@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
def test_a_part_of_what_offload_names_moves_and_the_rest_stays(offload: str) -> None:
    none, whole = states(3), states(3, offload=offload)
    for fraction in (0.0, 0.25, 1.0):
        found = states(3, offload=offload, offload_fraction=fraction)
        assert sum(found.values()) == sum(none.values()), "nothing is lost"
        assert found == {
            name: pytest.approx((1 - fraction) * none[name] + fraction * whole[name], abs=4) for name in none
        }
    with pytest.raises(InvalidInput, match="a part from 0 to 1"):
        StageConfig(offload=offload, offload_fraction=1.5)
    with pytest.raises(InvalidInput, match="with offload 'none'"):
        StageConfig(offload_fraction=0.5)


def test_gradients_lie_twice_and_as_their_sum_when_the_backward_of_a_stage_without_blocks_ends():
    model, weights = Gpt(8, 8, 1), 2 * 1_000 * 1_000
    work = Work("matmul", "column", 8, 1_000, 1_000)
    model.add("linear", "", work, (), (), [("weight", (1_000, 1_000))], 8)
    priced = StrategyModel(model.profile(), cluster(4, 2048), 1, TrainingJob("", "adam", whole_stages=True))
    terms = priced.terms(range(1), StageConfig(data=4, zero=2), range(4), 1, 1)
    there = terms.communication_buffers, terms.workspace, terms.activations
    assert sum(amount.point for amount in there) == 2 * weights + weights // 4 + CUBLAS_BYTES
    assert terms.unsharded_parameters.point == weights // 4
