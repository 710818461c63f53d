"""torchtitan 0.3.0: a plan in the configuration that a recipe returns, the pipelining function of its model included.

    from executor.adapters.torchtitan import find, planned

    plan = find("llama3-8b", num_devices=64, global_batch=512)
    config = planned(llama3_8b(), plan)

Degrees, FSDP, activation checkpointing and micro-batches as ``penstock export`` sets them
(`planner.export.torchtitan`); the model's own pipelining function gets the stages' modules and the orders from the
plan. Left to you: precision, optimizer, data, learning rate, compilation. A stage graph is refused: torch's schedules
run lines.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from costmodel.errors import DoesNotMatch
from planner.export.job_configs.key_table import key_table
from planner.export.torch_csv import schedule_csv
from planner.export.torchtitan import settings
from planner.graph.model_parts import model_part_names
from planner.plan import Plan
from planner.question.pipeline_support import Job, not_taken

Pipelining = Callable[..., tuple[Any, list[nn.Module], bool, bool]]
"""(model, named options) -> (schedule, model parts, has first stage, has last stage)."""


def find(name: str, num_devices: int, global_batch: int, **choices: Any) -> Plan:
    """Return a plan that torchtitan takes, found once (`planner.front.find_plan`)."""
    from planner.front import find_plan

    return find_plan(name, num_devices, global_batch, **{"target": "torchtitan", **choices})


def planned(config: Any, plan: Plan) -> Any:
    """Set what a plan says in a recipe's ``Trainer.Config``, and return it.

    Raises
    ------
    DoesNotMatch
        When torchtitan does not take the plan: says what of it.
    """
    if reason := not_taken("torchtitan", plan):
        raise DoesNotMatch(f"torchtitan does not take this plan: {reason}; plan with --target torchtitan")
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

    said = settings(plan)
    recompute = said.pop(key_table("torchtitan").key_of("recompute"))
    for path, value in said.items():
        section, name = path.split(".")
        setattr(getattr(config, section), name, value)
    again = {"none": None, "full": FullAC, "selective": SelectiveAC}[str(recompute)]
    config.activation_checkpoint = again.Config() if again else None
    if len(plan.stages) > 1:
        config.training.disable_cuda_graphs = True  # it has none within a pipeline
        config.model_spec = replace(config.model_spec, pipelining_fn=pipelining(plan, config.model_spec.pipelining_fn))
    return config


def pipelining(plan: Plan, own: Pipelining) -> Pipelining:
    """Return a model's pipelining function (``pipeline_llm`` or another) with a plan's stages and orders."""
    names = model_part_names(Job(plan).parts)[0]

    def pipeline(model: nn.Module, *, parallelism: Any, **options: Any) -> tuple[Any, list[nn.Module], bool, bool]:
        _check(model, names)
        with tempfile.TemporaryDirectory() as folder:
            orders = Path(folder) / "schedule.csv"
            orders.write_text(schedule_csv(plan), encoding="utf-8")
            parallelism = replace(
                parallelism, module_fqns_per_model_part=names, pipeline_parallel_schedule_csv=str(orders)
            )
            return own(model, parallelism=parallelism, **options)

    return pipeline


def _check(model: nn.Module, names: list[list[str]]) -> None:
    """Refuse a plan of another model: torchtitan drops what no stage names without a word."""
    planned_ones = {name for row in names for name in row}
    own = {
        f"{name}.{entry}" if isinstance(child, nn.ModuleList | nn.ModuleDict) else name
        for name, child in model.named_children()
        for entry in (dict(child.named_children()) if isinstance(child, nn.ModuleList | nn.ModuleDict) else ("",))
    }
    if wrong := sorted(planned_ones ^ own):
        held = "has no" if wrong[0] in planned_ones else "has, and no stage of the plan holds,"
        raise DoesNotMatch(
            f"the model {held} {json.dumps(wrong[0])}; plan this model, with its parts named as torchtitan does"
        )
