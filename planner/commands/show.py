"""Say in words what is in a plan: what runs where, what it is predicted to take, and what that rests on.

    penstock show plan.json

Everything is in the file; nothing is simulated (`penstock explain` says why, `penstock whatif` what if).
"""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.commands.answer import Answer
from planner.report.summary.text import Table, duration, for_people, percent, size

if TYPE_CHECKING:
    from planner.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plan", metavar="PLAN", help="plan file")


def run(args: argparse.Namespace) -> Answer:
    """Show the plan."""
    from planner.plan import read_plan

    plan = read_plan(args.plan)
    return Answer(_json(args.plan, plan), list(_text(args.plan, plan)))


def _json(path: str, plan: "Plan") -> dict[str, object]:
    from planner.plan import plan_to_json
    from planner.plan.provenance import rank_limits
    from planner.report.summary.figures import figures

    body, prediction = plan_to_json(plan), plan.prediction
    kept = ("model", "schedule", "stages", "edges", "runs_on", "training", "assumptions", "rungs", "provenance")
    return {
        "plan": path,
        **figures(
            plan,
            "strategy devices_used microbatches microbatch_size global_batch step_time_ns step_time_interval_ns "
            "samples_per_s bubble_ratio",
        ),
        "peak_memory_bytes": list(prediction.peak_memory_bytes),
        "peak_memory_upper_bytes": list(prediction.peak_memory_upper_bytes),
        "memory_limit_bytes": [limit or None for limit in rank_limits(plan)],
        **figures(plan, "status lower_bound_ns gap best_step_time_ns scope limited_by baselines"),
        "choice": str(plan.extra.get("choice", "")),
        **{name: body[name] for name in kept},
    }


def _text(path: str, plan: "Plan") -> Iterator[str | Table]:
    from planner.plan.rung import rung
    from planner.report.summary.plan_lines import assumed, expected, ladder, stage_table
    from planner.report.summary.rates import samples_per_s

    batch, search, prediction = plan.batch, plan.search, plan.prediction
    found = samples_per_s(plan)
    rate = "no time" if found is None else f"{found:.1f} samples a second"
    yield (
        f"{path}: {plan.model_name} ({plan.num_operators} operators), {rung(plan)} on {len(plan.orders)} ranks of "
        f"{', '.join(dict.fromkeys(plan.cluster.device_of(rank).name for rank in range(len(plan.orders))))}"
    )
    yield (
        f"batch        {batch.global_size} samples in {batch.num_microbatches} micro-batches of {batch.microbatch_size}"
        f", schedule {plan.schedule}"
    )
    yield f"chosen       {plan.extra.get('choice') or 'not recorded'}"
    step, bubble = duration(prediction.step_time_ns), percent(prediction.bubble_ratio)
    yield f"step time    {step} predicted, {rate}, bubble {bubble}"
    yield from expected(plan)
    yield f"lower bound  {duration(search.lower_bound_ns)}   gap {percent(search.gap)}, {search.status}"
    yield f"scope        {for_people(search.scope or 'not recorded')}"
    yield f"memory       {_memory(plan)}"
    yield f"runs on      {', '.join(plan.runs_on) or 'no trainer as it is'}"
    yield f"assumes      {assumed(plan)}"
    yield stage_table(plan)
    yield from ladder(plan)


def _memory(plan: "Plan") -> str:
    """Say what the fullest rank holds, against what it may."""
    from planner.plan.provenance import rank_limits

    peaks, limits = plan.prediction.peak_memory_bytes, rank_limits(plan)
    rank = max(range(len(peaks)), key=lambda each: (peaks[each] / (limits[each] or 2**62), -each))
    limit = limits[rank]
    of = f"of {size(limit)} ({percent(peaks[rank] / limit)})" if limit else "and no limit is known"
    upper = size(plan.prediction.peak_memory_upper_bytes[rank])
    return f"{size(peaks[rank])} {of} on rank {rank}, at most {upper}"
