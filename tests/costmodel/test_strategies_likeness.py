"""A model priced by one of each kind of operator takes what it takes as one stage, operator by operator."""

import pytest

from costmodel.errors import UsageError
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import StrategyModel, TrainingJob
from tests.support.described_models import described
from tests.support.gpt_graph import cluster, gpt

MACHINES = cluster(64, 4096)
PROFILES = {name: described(name) for name in ("llama", "gpt2", "mixtral")} | {"small": gpt(3, 96, 48, 8, 100)}
CONFIGS = [
    StageConfig(data, tensor, sequence, context, expert)
    for data in (1, 4)
    for tensor, sequence in ((1, 1), (2, 1), (2, 2), (4, 4))
    for context in (1, 2)
    for expert in (1, 4)
    if data * context % expert == 0
]


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("overlap", [False, True])
def test_the_whole_takes_what_one_stage_of_all_operators_takes(name: str, overlap: bool) -> None:
    profile, tried = PROFILES[name], 0
    model = StrategyModel(profile, MACHINES, 2, TrainingJob(overlap=overlap))
    everything = range(len(profile.graph.operators))
    for config in CONFIGS:
        ranks = range(config.data * config.tensor * config.context)
        try:
            known = sum(model.times(everything, config, ranks)[:3])
        except UsageError:
            continue  # operators that do not divide so
        assert model.least_work_ns(everything, config, ranks) == known
        tried += 1
    assert tried >= 4


def test_the_kinds_of_a_language_model_are_few_and_count_all_operators() -> None:
    profile = described("llama")
    equivalence = StrategyModel(profile, MACHINES, 2, TrainingJob())._build.equivalence
    assert sum(equivalence.operators.values()) == len(profile.graph.operators)
    assert sum(equivalence.tensors.values()) == len(profile.graph.tensors)
    assert len(equivalence.operators) < len(profile.graph.operators) / 3
