"""Plans of one stage for trainers of replicas: what is told of them, and what is refused by name."""

from dataclasses import replace

import pytest
from torch import nn

from costmodel.errors import DoesNotMatch
from costmodel.stages.config import StageConfig
from executor.adapters.accelerate import accelerator_options
from executor.adapters.lightning import trainer_options
from executor.adapters.replicas import ReplicaSettings, replica_settings
from tests.support.trainers.plans import plan_of


def test_zero_3_in_shard_groups_is_told_whole() -> None:
    plan = plan_of(StageConfig(data=4, zero=3, shard_group=2, recompute="full"))
    layers = tuple(f"model.layers.{i}" for i in range(8))
    assert replica_settings(plan, "a trainer") == ReplicaSettings(
        replicas=4, shard_group=2, reshard=True, units=plan.stages[0].units, microbatch_size=1, accumulation=4,
        checkpointing=True, offload=False, precision="bf16", hosts=1, host_devices=4,
    )  # fmt: skip
    assert set(layers) <= set(plan.stages[0].units)


def test_replicas_that_divide_nothing_are_a_group_of_one() -> None:
    found = replica_settings(plan_of(StageConfig(data=2)), "a trainer")
    assert (found.shard_group, found.reshard, found.units, found.accumulation) == (1, False, (), 8)


@pytest.mark.parametrize(
    ("config", "stages", "named"),
    [
        (StageConfig(data=2), 2, "2 stages"),
        (StageConfig(tensor=2), 1, "tensor parallelism"),
        (StageConfig(data=2, zero=1), 1, "ZeRO-1"),
        (StageConfig(data=2, zero=3, recompute="selective"), 1, "a part of each layer"),
        (StageConfig(data=2, recompute="full"), 1, "DistributedDataParallel"),
    ],
)
def test_what_no_trainer_of_replicas_takes_is_refused_by_name(config: StageConfig, stages: int, named: str) -> None:
    with pytest.raises(DoesNotMatch, match=named):
        replica_settings(plan_of(config, stages), "a trainer")


def test_offload_of_the_optimizer_alone_is_refused_and_of_parameters_is_told() -> None:
    plan = plan_of(StageConfig(data=2, zero=2))
    (stage,) = plan.stages
    lying = {where: replace(plan, stages=(replace(stage, config=replace(stage.config, offload=where)),))
             for where in ("optimizer", "parameters")}  # fmt: skip
    with pytest.raises(DoesNotMatch, match="offload of optimizer"):
        replica_settings(lying["optimizer"], "a trainer")
    assert replica_settings(lying["parameters"], "a trainer").offload


def test_lightning_has_no_shard_groups_and_accelerate_needs_the_plans_units() -> None:
    with pytest.raises(DoesNotMatch, match="no shard groups"):
        trainer_options(plan_of(StageConfig(data=4, zero=3, shard_group=2)))
    plan = plan_of(StageConfig(data=2))
    narrow = replace(plan, assumptions=replace(plan.assumptions, precision="nvfp4"))
    with pytest.raises(DoesNotMatch, match="no precision nvfp4"):
        trainer_options(narrow)
    with pytest.raises(DoesNotMatch, match=r"model\.layers\.0"):
        accelerator_options(plan_of(StageConfig(data=2, zero=3)), nn.Linear(2, 2))
