"""Activation bytes of a transformer layer are those of Korthikanti et al., Reducing Activation Recomputation in Large
Transformer Models, 2022, Table 2 and section 4, term by term.
"""

import pytest

from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import StrategyModel, TrainingJob
from tests.support.gpt_graph import cluster, gpt

S, B, H, A = 64, 3, 32, 4
SBH = S * B * H
SCORES = 5 * A * S * S * B  # 5 a s / h of s b h
LAYER = range(1, 11)


def kept(config: StageConfig, ranks: int, *, flash: bool = False, sequence_parallel: bool = False) -> int:
    profile = gpt(1, S, H, A)
    training = TrainingJob(flash=flash, sequence_parallel=sequence_parallel)
    model = StrategyModel(profile, cluster(), B, training)
    return model.stage(LAYER, config, range(ranks)).activation_bytes


def test_a_whole_layer_keeps_34_sbh_and_its_scores():
    assert kept(StageConfig(), 1) == 34 * SBH + SCORES


@pytest.mark.parametrize("t", [2, 4])
def test_tensor_parallelism_divides_24_of_34_sbh_and_the_scores(t):
    assert kept(StageConfig(tensor=t), t) == 10 * SBH + 24 * SBH // t + SCORES // t


@pytest.mark.parametrize("t", [2, 4])
def test_sequence_parallelism_divides_all_of_a_layer(t):
    assert kept(StageConfig(tensor=t), t, sequence_parallel=True) == (34 * SBH + SCORES) // t
    assert kept(StageConfig(tensor=t, sequence=t), t) == (34 * SBH + SCORES) // t


@pytest.mark.parametrize("t", [1, 2, 4])
def test_selective_recompute_keeps_all_but_the_scores(t):
    config = StageConfig(tensor=t, recompute="selective")
    assert kept(config, t, sequence_parallel=True) == 34 * SBH // t


@pytest.mark.parametrize("t", [1, 2, 4])
def test_full_recompute_keeps_the_layers_input(t):
    assert kept(StageConfig(tensor=t, recompute="full"), t) == 2 * SBH


def test_flash_attention_keeps_no_scores():
    assert kept(StageConfig(), 1, flash=True) == 34 * SBH


def test_context_parallelism_divides_everything_by_the_sequence():
    assert kept(StageConfig(context=4), 4) == (34 * SBH + SCORES) // 4


def test_layers_of_one_stage_keep_as_much_as_alone_together():
    model = StrategyModel(gpt(3, S, H, A), cluster(), B, TrainingJob(flash=False))
    assert model.stage(range(1, 31), StageConfig(), (0,)).activation_bytes == 3 * (34 * SBH + SCORES)


def test_recompute_makes_one_block_again_at_a_time():
    model = StrategyModel(gpt(3, S, H, A), cluster(), B, TrainingJob(flash=False))
    terms = model.terms(range(1, 31), StageConfig(recompute="full"), (0,), 8, 2)
    assert terms.activations.point == 2 * 3 * 2 * SBH
    assert terms.recompute_peak.point == 32 * SBH + SCORES  # all of a layer but its input, which is kept
