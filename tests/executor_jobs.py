"""What ranks do for the executor's tests; every rank makes the same plan by itself."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from costmodel.profiling.batches import TrainingModel
from costmodel.profiling.capture import Capture, capture
from costmodel.profiling.models import load_model
from costmodel.strategy import StageConfig
from executor import Pipeline
from executor.check import compare
from planner.plan import Plan
from tests.plans_by_hand import in_equal_runs, plan_by_hand, split_backwards, with_recompute


@cache
def captured(model: str) -> Capture:
    return capture(load_model(f"tests.training_models:{model}", 4))


def make_plan(model: str, num_stages: int = 3, configs: Sequence[dict[str, Any]] | None = None, **options: Any) -> Plan:
    source = captured(model)
    groups = options.pop("groups", None) or in_equal_runs(source.operators, num_stages)
    made = [StageConfig(**config) for config in configs] if configs else None
    schedule = options.pop("schedule", "graph-1f1b")
    made_by = {"split": split_backwards, "recompute": with_recompute}.get(schedule, schedule)
    return plan_by_hand(source, groups, configs=made, schedule=made_by, **options)


def whole_batch(model: str, plan: Plan) -> TrainingModel:
    return load_model(f"tests.training_models:{model}", plan.batch.global_size)


def errors(model: str, num_steps: int = 1, **options: Any) -> dict[str, Any]:
    """Run a plan and compare its last step with one process."""
    plan = make_plan(model, **options)
    batch = whole_batch(model, plan)
    with Pipeline(plan, captured(model)) as pipeline:
        for _ in range(num_steps):
            pipeline.step(batch.kwargs or batch.args, batch.targets)
        loss = pipeline.total_loss()
        found = compare(pipeline.worker, loss, batch if pipeline.rank == 0 else None)
    return {"gradient": found.max_gradient_error, "loss": found.loss_error, "worst": found.worst_parameter}
