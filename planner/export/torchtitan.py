"""torchtitan: the orders as torch's CSV, the modules of each model part, and a function that sets both in a recipe.

The names are those of torchtitan's `config/configs.py` (commit 0014ac2); its recipes are Python, so the degrees are set
on the configuration that a recipe returns. Leaves out what a plan does not say: data, learning rate, compilation.
"""

import json

from planner.export.torch_csv import schedule_csv
from planner.graph.model_parts import model_part_names
from planner.plan import Plan
from planner.question.pipeline_support import Job

PLACEMENT = {True: "ZBVZeroBubble", False: "PipelineScheduleMulti"}
"""The schedule whose placement of stages torchtitan takes with a CSV of orders: in a V, or in a loop."""

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
    found = {"recipe.py": _recipe(plan)}
    if len(plan.stages) > 1:
        rows, _ = model_part_names(Job(plan).parts)
        found |= {"schedule.csv": schedule_csv(plan), "model_parts.json": json.dumps(rows, indent=1) + "\n"}
    return found


def settings(plan: Plan) -> dict[str, object]:
    """Return the values that a recipe's configuration gets, by their path in it."""
    config, replicas = plan.stages[0].config, plan.stages[0].config.data
    sharded = config.zero > 1
    found: dict[str, object] = {
        "training.global_batch_size": plan.batch.global_size,
        "training.local_batch_size": plan.batch.global_size // replicas,
        "parallelism.data_parallel_replicate_degree": 1 if sharded else replicas,
        "parallelism.data_parallel_shard_degree": replicas if sharded else 1,
        "parallelism.fsdp_reshard_after_forward": "always" if config.zero == 3 else "never",
        "parallelism.tensor_parallel_degree": config.tensor,
        "parallelism.enable_sequence_parallel": config.sequence > 1,
        "parallelism.context_parallel_degree": config.context,
        "parallelism.expert_parallel_degree": config.expert,
        "activation_checkpoint.mode": config.recompute,
    }
    if len(plan.stages) == 1:
        return {**found, "training.local_batch_size": plan.batch.microbatch_size}
    return {
        **found,
        "parallelism.pipeline_parallel_degree": len(Job(plan).places),
        "parallelism.pipeline_parallel_schedule": PLACEMENT[Job(plan).is_wave and not Job(plan).is_loop],
        "parallelism.pipeline_parallel_microbatch_size": plan.batch.microbatch_size,
    }


def _recipe(plan: Plan) -> str:
    pipelined = len(plan.stages) > 1
    lines = [f"    config.{path} = {json.dumps(value) if isinstance(value, str) else value}"
             for path, value in settings(plan).items()]  # fmt: skip
    return "".join(
        [
            '"""How Penstock planned a step: call `planned` on the configuration of a torchtitan recipe."""\n',
            FOLDER if pipelined else "",
            "\n\ndef planned(config):\n",
            '    """Set what the plan says in a torchtitan configuration, and return it."""\n',
            "\n".join(lines),
            PIPELINE if pipelined else "",
            "\n    return config\n",
        ]
    )
