"""Thirty-one small remakes of real configurations: captured, counted as transformers counts, divided by tensor degrees.

Each is captured once, at the size of a toy; their published sizes are tried from outside.
"""

import json
import warnings
from pathlib import Path

import pytest

from costmodel.architectures.command import make
from costmodel.machines.typical import typical_cluster
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import StrategyModel, TrainingJob
from tests.support.transformers_families import FAMILIES, WRITTEN_FOR

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

KNOWN = transformers.models.auto.configuration_auto.CONFIG_MAPPING
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_is_captured_counted_and_divided(model_type: str, tmp_path: Path) -> None:
    if model_type not in KNOWN:
        pytest.skip(f"transformers {transformers.__version__} has no {model_type}; written for {WRITTEN_FOR}")
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **FAMILIES[model_type]}))
    profile, facts = make(str(path), "h100-sxm-80", (1, 2), 32, source="captured")
    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        with torch.device("meta"):
            built = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(path))
        assert facts["parameters"] == built.num_parameters()
    works = [operator.work for operator in profile.graph.operators]
    assert any(work and work.split in ("row", "expert") and work.kind == "matmul" for work in works)
    experts = {(work.experts, work.active) for work in works if work and work.experts}
    assert experts == ({(8, 2)} if "num_experts_per_tok" in FAMILIES[model_type] else set())
    model = StrategyModel(profile, typical_cluster("h100-sxm-80", 8), 1, TrainingJob.of("megatron", "bf16", "adam"))
    whole, halves = (
        dict(model.stage(range(len(works)), StageConfig(tensor=degree), range(degree)).memory_terms)["parameters"]
        for degree in (1, 2)
    )
    assert halves < 0.9 * whole
