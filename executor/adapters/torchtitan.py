"""torchtitan 0.3.0: a plan in the configuration that a recipe returns, the pipelining function of its model included.

    from executor.adapters.torchtitan import find, planned

    plan = find("llama3-8b", num_devices=64, global_batch=512)
    config = planned(llama3_8b(), plan)

Degrees, FSDP, activation checkpointing and micro-batches as ``penstock export`` sets them
(`planner.export.torchtitan`); the model's own pipelining function gets the stages' modules and the orders from the
plan. What torch's schedules do not run, stage graphs say, our executor runs in their place
(`executor.adapters.executed_schedule`): ask for it with ``target="executor"``. Left to you: precision, optimizer, data,
learning rate, compilation.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from costmodel.errors import DoesNotMatch
from executor.adapters.executed_schedule import Inputs, executed, executed_settings, not_executed
from executor.adapters.finder import finder
from planner.export.torch_csv import schedule_csv
from planner.export.torchtitan import RECOMPUTE, recipe_settings
from planner.graph.model_parts import model_part_names
from planner.plan import Plan
from planner.question.pipeline_support import Job, not_taken

Pipelining = Callable[..., tuple[Any, list[nn.Module], bool, bool]]
"""(model, named options) -> (schedule, model parts, has first stage, has last stage)."""
find = finder("torchtitan")
"""Of a plan that torchtitan takes, found once."""


def planned(config: Any, plan: Plan, inputs: Inputs | None = None) -> Any:
    """Set what a plan says in a recipe's ``Trainer.Config``, and return it.

    Parameters
    ----------
    config : Trainer.Config
    plan : Plan
    inputs : mapping of str to torch.Tensor, optional
        Where our executor runs the plan, an example of what the model's forward takes, on any device, of which only
        the shapes matter; default: tokens and their positions.

    Raises
    ------
    DoesNotMatch
        When torchtitan does not take the plan: says what of it.
    """
    reason = not_taken("torchtitan", plan)
    if reason and (why := not_executed(plan)):
        raise DoesNotMatch(
            f"torchtitan does not take this plan: {reason}; nor does our executor run it in torchtitan's loop: {why}; "
            "plan with --target torchtitan"
        )
    from torchtitan.distributed import activation_checkpoint

    said, policy = (executed_settings(plan), "") if reason else recipe_settings(plan)
    places = {path: path.split(".") for path in said}
    if missing := next(
        (path for path, (section, name) in places.items() if not hasattr(getattr(config, section), name)), ""
    ):
        raise DoesNotMatch(
            f"this torchtitan has no {missing}, and the plan sets it to {said[missing]}; plan without that"
        )
    for path, (section, name) in places.items():
        setattr(getattr(config, section), name, said[path])
    setattr(config, RECOMPUTE, getattr(activation_checkpoint, policy).Config() if policy else None)
    if len(plan.stages) > 1:
        function = executed(plan, inputs) if reason else pipelining(plan, config.model_spec.pipelining_fn)
        config.model_spec = replace(config.model_spec, pipelining_fn=function)
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
