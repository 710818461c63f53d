"""megatron-core's configuration objects accept what plans say: degrees, layout, precision, recompute, optimizer."""

from collections.abc import Iterator
from itertools import count, islice
from random import Random

import pytest
import torch

from executor.adapters.megatron import configurations, launch_arguments
from planner.graph.layout import layer_letters
from planner.plan import Plan
from planner.question.pipeline_support import Job, not_taken
from tests.properties.export_cases import random_line
from tests.support.described_models import described

SIZES = {"llama": (256, 8, 4), "gpt2": (128, 4, 4), "mixtral": (128, 4, 2)}
"""Hidden size, heads, and groups of keys of the small models."""


def plans() -> Iterator[tuple[str, Plan]]:
    """Yield plans that Megatron takes, of models, degrees, cuts and recompute drawn at random, with their models."""
    for seed in count():
        made = random_line(Random(seed))
        if made and not not_taken("megatron", made[1]):
            yield next(name for name in SIZES if described(name).graph.fingerprint == made[1].fingerprint), made[1]


def check_accepted(name: str, plan: Plan) -> None:
    """Hold what megatron-core's objects make of a plan against it; needs megatron-core."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig

    made, (hidden, heads, groups), stage = configurations(plan), SIZES[name], plan.stages[0].config
    experts = {"num_moe_experts": 4, "add_bias_linear": False} if name == "mixtral" else {}
    layers = {"num_layers": 8 if name == "llama" else 4, **made["model"]}
    config = TransformerConfig(
        **layers, **experts, hidden_size=hidden, num_attention_heads=heads, num_query_groups=groups
    )
    ddp, optimizer = DistributedDataParallelConfig(**made["ddp"]), OptimizerConfig(**made["optimizer"], lr=1e-4)
    assert config.tensor_model_parallel_size == stage.tensor
    assert config.sequence_parallel is (stage.sequence > 1)
    assert config.recompute_granularity == (None if stage.recompute == "none" else stage.recompute)
    assert ddp.use_distributed_optimizer is optimizer.use_distributed_optimizer is (stage.zero > 0)
    assert made["train"]["micro_batch_size"] == plan.batch.microbatch_size
    assert config.params_dtype is (torch.bfloat16 if plan.assumptions.precision == "bf16" else torch.float32)
    if len(plan.stages) > 1:
        places, letters = len(Job(plan).places), {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
        own = config.pipeline_model_parallel_layout.layout
        rows = [own[i % places][i // places] for i in range(len(plan.stages))]
        assert ["".join(letters[kind.name] for kind in row) for row in rows] == list(layer_letters(Job(plan).parts))


def test_the_arguments_are_the_flags_as_words() -> None:
    _, plan = next(plans())
    words = launch_arguments(plan)
    assert words[words.index("--global-batch-size") + 1] == str(plan.batch.global_size)
    assert not any(" " in word for word in words)


def test_megatron_core_accepts_100_plans() -> None:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed: `make trainers` runs this")
    seen = set()
    for name, plan in islice(plans(), 100):
        check_accepted(name, plan)
        seen.add((name, len(plan.stages), plan.stages[0].config))
    assert len(seen) > 20, "most of them are unlike each other"
