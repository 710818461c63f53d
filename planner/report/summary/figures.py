"""Figures of a plan by the keys that they have in JSON, and how people read each: one list for all answers.

Leaves out what a simulation adds to a plan's file (`planner.report.comparison.compared`).
"""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

from costmodel.codec import to_json
from planner.plan import Plan
from planner.plan.fitting import fitting_of
from planner.plan.replay import depth
from planner.plan.rung import rung
from planner.report.summary.rates import mfu, mfu_causal, samples_per_s, tokens_per_s
from planner.report.summary.standing import standings
from planner.report.summary.text import duration, percent, size

FIGURES: Mapping[str, Callable[[Plan], object]] = {
    "model": lambda plan: plan.model_name,
    "strategy": rung,
    "schedule": lambda plan: plan.schedule,
    "stages": lambda plan: len(plan.stages),
    "depth": depth,
    "ranks": lambda plan: len(plan.orders),
    "devices_used": lambda plan: len(plan.orders),
    "batch": lambda plan: plan.batch.global_size,
    "global_batch": lambda plan: plan.batch.global_size,
    "microbatches": lambda plan: plan.batch.num_microbatches,
    "microbatch_size": lambda plan: plan.batch.microbatch_size,
    "step_time_ns": lambda plan: plan.prediction.step_time_ns,
    "step_time_interval_ns": lambda plan: plan.prediction.step_time_interval_ns,
    "span_ns": lambda plan: plan.prediction.span_ns,
    "samples_per_s": samples_per_s,
    "tokens_per_s": tokens_per_s,
    "mfu": mfu,
    "mfu_causal": mfu_causal,
    "bubble_ratio": lambda plan: plan.prediction.bubble_ratio,
    "peak_memory_bytes": lambda plan: max(plan.prediction.peak_memory_bytes),
    "peak_memory_upper_bytes": lambda plan: max(plan.prediction.peak_memory_upper_bytes),
    "fits": fitting_of,
    "assumptions": lambda plan: to_json(plan.assumptions),
    "standing": standings,
    "runs_on": lambda plan: list(plan.runs_on),
    "baselines": lambda plan: dict(plan.search.baselines),
    **{
        name: attrgetter(f"search.{name}")
        for name in ("status", "lower_bound_ns", "gap", "scope", "best_step_time_ns", "limited_by",
                     "model_objective_ns", "model_lower_bound_ns", "model_gap")
    },
}  # fmt: skip
SHARES = ("bubble_ratio", "gap", "mfu", "mfu_causal")


def figures(plan: Plan, names: str | Iterable[str]) -> dict[str, object]:
    """Return some figures of a plan; one text names them with spaces between."""
    return {name: FIGURES[name](plan) for name in (names.split() if isinstance(names, str) else names)}


def told(name: str, value: object) -> str:
    """Write a figure for people; a dash where there is none."""
    if value is None:
        return "-"
    if name.endswith("_ns"):
        return duration(value)  # type: ignore[arg-type]
    if name.endswith("_bytes"):
        return size(value)  # type: ignore[arg-type]
    if name in SHARES:
        return percent(value)  # type: ignore[arg-type]
    return f"{value:.{0 if name == 'tokens_per_s' else 1}f}" if isinstance(value, float) else str(value)
