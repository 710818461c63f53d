"""torchtitan: the orders as torch's CSV, the modules of each model part, and a function that sets both in a recipe.

The names are those of torchtitan 0.3.0's `config/configs.py`; its recipes are Python, so the degrees are set on the
configuration that a recipe returns, by the exported function or by the adapter (`executor.adapters.torchtitan`);
``job.toml`` is for the versions before. Leaves out what a plan does not say: data, learning rate, compilation.
"""

import json
from collections.abc import Mapping

from planner.export.job_configs.key_table import key_table
from planner.export.torch_csv import schedule_csv
from planner.graph.model_parts import model_part_names
from planner.plan import Plan
from planner.question.pipeline_support import Job

PLACEMENT = {True: "ZBVZeroBubble", False: "PipelineScheduleMulti"}
"""The schedule whose placement of stages torchtitan takes with a CSV of orders: in a V, or in a loop."""

RECOMPUTE = "activation_checkpoint"
"""What a recipe's configuration says of recompute: None, or the ``Config`` of one of `POLICIES`."""
POLICIES = {"full": "FullAC", "selective": "SelectiveAC"}
"""The classes of `torchtitan.distributed.activation_checkpoint` that run again what a plan says."""
PIPELINED: dict[str, object] = {"training.disable_cuda_graphs": True}
"""What a recipe's configuration says of a pipeline, in which torchtitan has no CUDA graphs."""

FOLDER = """
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
"""
PIPELINE = """
    config.parallelism.pipeline_parallel_schedule_csv = str(HERE / "schedule.csv")
    parts = (HERE / "model_parts.json").read_text()
    config.parallelism.module_fqns_per_model_part = json.loads(parts)"""


def files(plan: Plan) -> dict[str, str]:
    """Return the files of a plan, by name."""
    said = settings(plan)
    found = {"recipe.py": _recipe(plan)}
    if len(plan.stages) > 1:
        table, (rows, _) = key_table("torchtitan"), model_part_names(Job(plan).parts)
        found |= {"schedule.csv": schedule_csv(plan), "model_parts.json": json.dumps(rows, indent=1) + "\n"}
        said |= {table.key_of("modules"): rows, table.key_of("schedule_csv"): "schedule.csv"}
    return {**found, "job.toml": _toml(said)}


def recipe_settings(plan: Plan) -> tuple[dict[str, object], str]:
    """Return the values that a recipe's configuration gets, by their path, and its policy of recompute, or nothing."""
    said = settings(plan)
    policy = POLICIES.get(str(said.pop(key_table("torchtitan").key_of("recompute"))), "")
    if len(plan.stages) > 1:
        said |= PIPELINED
    return said, policy


def settings(plan: Plan) -> dict[str, object]:
    """Return the values that a job's TOML gets, by their path in it."""
    config, replicas = plan.stages[0].config, plan.stages[0].config.data
    shard = (config.shard_group or replicas) if config.zero > 1 else 1
    facts: dict[str, object] = {
        "global_batch": plan.batch.global_size,
        "local_batch": plan.batch.global_size // replicas,
        "replicate": replicas // shard,
        "shard": shard,
        "reshard": "always" if config.zero == 3 else "never",
        "tensor": config.tensor,
        "sequence_parallel": config.sequence > 1,
        "context": config.context,
        "expert": config.expert,
        "recompute": config.recompute,
    }
    if config.expert > 1 and config.expert_tensor > 1:
        facts["expert_tensor"] = config.expert_tensor
    if config.expert > 1 and "dispatcher flex" in plan.assumptions.habits:
        facts["dispatcher"] = "deepep"
    if len(plan.stages) == 1:
        facts["local_batch"] = plan.batch.microbatch_size
    else:
        facts["stages"] = len(Job(plan).places)
        facts["schedule"] = PLACEMENT[Job(plan).is_wave and not Job(plan).is_loop]
        facts["microbatch_size"] = plan.batch.microbatch_size
    table = key_table("torchtitan")
    return {table.key_of(fact): value for fact, value in facts.items()}


def _toml(said: Mapping[str, object]) -> str:
    """Return the TOML that torchtitan took before its recipes were Python."""
    lines: dict[str, list[str]] = {}
    for path, value in said.items():
        section, name = path.split(".")
        lines.setdefault(f"[{section}]", []).append(f"{name} = {json.dumps(value)}")
    return "\n".join("\n".join([section, *rows, ""]) for section, rows in lines.items())


def _recipe(plan: Plan) -> str:
    pipelined, (said, policy) = len(plan.stages) > 1, recipe_settings(plan)
    lines = [f"    config.{path} = {json.dumps(value) if isinstance(value, str) else value}"
             for path, value in said.items()]  # fmt: skip
    lines.append(f"    config.{RECOMPUTE} = {f'{policy}.Config()' if policy else None}")
    imported = f"    from torchtitan.distributed.activation_checkpoint import {policy}\n\n" if policy else ""
    return "".join(
        [
            '"""How Penstock planned a step: call `planned` on the configuration of a torchtitan recipe."""\n',
            FOLDER if pipelined else "",
            "\n\ndef planned(config):\n",
            '    """Set what the plan says in a torchtitan configuration, and return it."""\n',
            imported,
            "\n".join(lines),
            PIPELINE if pipelined else "",
            "\n    return config\n",
        ]
    )
