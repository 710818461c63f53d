"""torchtitan's own training loop on processors, with a model of two branches: alone, or as a stage graph on two ranks.

    torchtitan_branches_job.py alone|planned|resumed FOLDER

Prints the loss of each step as JSON, on rank 0. Planned, the left branch and the head are stages of rank 0, the right
branch is one of rank 1. A checkpoint is saved each second step; resumed, training goes on behind the first one.
"""

import json
import sys
from typing import Any

from tests.support.trainers.torchtitan_stand_ins import BATCH, RandomTokens, small_job, trained  # isort: skip
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.validate import Validator
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from executor.adapters.torchtitan import find, planned
from planner.plan import Plan
from planner.question.pins import Group, Pins, StagePin
from tests.support.trainers.branches import Branches

STAGES = ((("tokens", "left.*"), 0), (("places", "right.*"), 1), (("*",), 0))
"""Patterns of each stage's modules, and its rank."""


def own_config(folder: str) -> Any:
    """Return the configuration of one rank."""
    spec = ModelSpec("branches", "small", Branches.Config(), lambda model, **_: model, None, None, None)
    config = small_job(Trainer.Config(model_spec=spec, optimizer=default_adamw(lr=1e-2)), folder)
    config.checkpoint = CheckpointManager.Config(enable=True, interval=2, last_save_model_only=False)
    config.validator = Validator.Config(enable=True, freq=2, steps=1, dataloader=RandomTokens.Config())
    config.metrics.log_freq = 1
    return config


def plan_here(folder: str) -> Plan:
    """Return the plan of the two branches, which the first run finds."""
    pins = Pins(stages=tuple(StagePin(Group(patterns, "the test"), (rank,)) for patterns, rank in STAGES))
    model = "tests.support.trainers.branches:build"
    return find(model, 2, BATCH, target="executor", device="cpu", pins=pins, microbatch_size=2, folder=folder)


def main(kind: str, folder: str) -> None:
    """Train for a few steps."""
    config = own_config(folder)
    if kind != "alone":
        config = planned(config, plan_here(folder))
    if kind == "resumed":
        config.checkpoint.load_step = 2
    trainer = config.build()
    validated: list[float] = []
    trainer.metrics_processor.log_validation = lambda *, loss, step: validated.append(loss)
    found = trained(trainer)
    if found["held"][0][0].startswith("head"):
        print(json.dumps({**found, "validated": validated}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
