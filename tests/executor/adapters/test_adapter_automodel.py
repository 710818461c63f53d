"""Automodel's own reader of a recipe's ``distributed`` section takes what plans of replicas say."""

import pytest
import torch

from costmodel.stages.config import StageConfig
from executor.adapters.automodel import recipe_sections
from tests.support.trainers.plans import plan_of

pytest.importorskip("nemo_automodel", reason="NeMo Automodel is not installed: `make trainers` runs this")


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("shard_group", [0, 2])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_fsdp_sections_are_read_as_they_are_meant(zero: int, shard_group: int, recompute: str) -> None:
    from nemo_automodel.recipes._dist_utils import parse_distributed_section

    plan = plan_of(StageConfig(data=4, zero=zero, shard_group=shard_group, recompute=recompute))
    sections = recipe_sections(plan)
    read = parse_distributed_section(sections["distributed"])
    assert (read["dp_size"], read["dp_replicate_size"]) == (4, 2 if shard_group else 1)
    assert read["strategy_config"].reshard_after_forward is (zero == 3)
    assert read["strategy_config"].mp_policy.param_dtype is torch.bfloat16
    assert read["activation_checkpointing"] is (recompute == "full")
    assert sections["step_scheduler"] == {"global_batch_size": 16, "local_batch_size": 1}


def test_replicas_that_divide_nothing_run_under_ddp() -> None:
    from nemo_automodel.recipes._dist_utils import parse_distributed_section

    read = parse_distributed_section(recipe_sections(plan_of(StageConfig(data=4)))["distributed"])
    assert (type(read["strategy_config"]).__name__, read["strategy_config"].autocast_dtype) == (
        "DDPConfig",
        torch.bfloat16,
    )
