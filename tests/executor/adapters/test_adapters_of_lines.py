"""Adapters of trainers that run stages in a line: what they hand over, and what they refuse without the trainer."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from costmodel.errors import DoesNotMatch
from costmodel.stages.config import StageConfig
from executor.adapters.deepspeed import pipeline_module
from executor.adapters.megatron import SECTIONS, configurations, planned
from executor.adapters.torchtitan import pipelining
from tests.support.trainers.plans import plan_of


@dataclass(frozen=True)
class Parallelism:
    """What torchtitan's function is told of stages and orders."""

    module_fqns_per_model_part: list[list[str]] | None = None
    pipeline_parallel_schedule_csv: str = ""


class Decoder(nn.Module):
    """The parts of torchtitan's language models, by their names there."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.tok_embeddings, self.norm, self.lm_head = nn.Embedding(2, 2), nn.LayerNorm(2), nn.Linear(2, 2)
        self.layers = nn.ModuleDict({str(i): nn.Linear(2, 2) for i in range(num_layers)})


def told(_: nn.Module, *, parallelism: Parallelism, **options: Any) -> Any:
    orders = Path(parallelism.pipeline_parallel_schedule_csv).read_text()
    return parallelism.module_fqns_per_model_part, orders, options


def test_the_models_own_function_gets_the_stages_modules_and_the_orders() -> None:
    rows, orders, options = pipelining(plan_of(StageConfig(), 2), told)(
        Decoder(8), parallelism=Parallelism(), device="cpu"
    )
    assert sorted(name for row in rows for name in row) == sorted(
        ["tok_embeddings", *(f"layers.{i}" for i in range(8)), "norm", "lm_head"]
    )
    assert [len(line.split(",")) for line in orders.splitlines()] == [32, 32]
    assert options == {"device": "cpu"}


@pytest.mark.parametrize(
    ("num_layers", "named"), [(7, r"has no \"layers\.7\""), (9, r"no stage .* holds, \"layers\.8\"")]
)
def test_a_model_whose_parts_are_not_the_plans_is_refused(num_layers: int, named: str) -> None:
    with pytest.raises(DoesNotMatch, match=named):
        pipelining(plan_of(StageConfig(), 2), told)(Decoder(num_layers), parallelism=Parallelism())


def test_deepspeeds_layers_are_as_many_as_the_plans() -> None:
    with pytest.raises(DoesNotMatch, match="3 layers, and the plan's stages have 11: "):
        pipeline_module(plan_of(StageConfig(), 2), [nn.Linear(2, 2)] * 3)


def test_megatrons_optimizer_is_told_of_precision_and_zero_as_its_gradients_are() -> None:
    made = configurations(plan_of(StageConfig(data=2, zero=1, tensor=2, sequence=2), 1))
    assert made["ddp"]["use_distributed_optimizer"] is made["optimizer"]["use_distributed_optimizer"] is True
    assert made["model"]["bf16"] is made["optimizer"]["bf16"] is made["model"]["sequence_parallel"] is True
    assert made["train"] == {"micro_batch_size": 1, "global_batch_size": 16}


def test_a_recipe_of_sections_is_set_in_place() -> None:
    recipe = SimpleNamespace(**{name: SimpleNamespace() for name in SECTIONS})
    assert planned(recipe, plan_of(StageConfig(tensor=2), 1)).model.tensor_model_parallel_size == 2
