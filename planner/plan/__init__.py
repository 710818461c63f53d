"""The plan: its parts, its file, and what can be read off it.

What is offered here needs the standard library alone, so that the checker and the executor read plans without the
simulator; `replay` simulates a plan again, `make` turns a candidate into one.
"""

from planner.plan.file import plan_to_json, read_plan, write_plan
from planner.plan.parts import (
    ALL_GATHER,
    ALL_REDUCE,
    MICROBATCH,
    REDUCE_SCATTER,
    REPLICATE,
    STEP,
    Assumptions,
    Batch,
    Collective,
    PlanEdge,
    PlanStage,
    Prediction,
    Rung,
    SearchResult,
    Training,
)
from planner.plan.whole import Plan

__all__ = [
    "ALL_GATHER", "ALL_REDUCE", "MICROBATCH", "REDUCE_SCATTER", "REPLICATE", "STEP", "Assumptions", "Batch",
    "Collective", "Plan", "PlanEdge", "PlanStage", "Prediction", "Rung", "SearchResult", "Training",
    "plan_to_json", "read_plan", "write_plan"
]  # fmt: skip
