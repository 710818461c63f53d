"""Put plans side by side: one row a plan, and pictures.

--chart draws every plan's timeline on one time axis, over the bubble and the step time of each.
"""

import argparse

from planner.commands.answer import Answer, Table, mebibytes, milliseconds, percent
from planner.plan import Plan, read_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plans", nargs="+", metavar="PLAN", help="plan files")
    parser.add_argument("--chart", metavar="F", help="picture of all timelines (.png, .svg or .pdf)")


def run(args: argparse.Namespace) -> Answer:
    """Compare the plans."""
    plans = [(path, read_plan(path)) for path in args.plans]
    rows = [_row(path, plan) for path, plan in plans]
    if args.chart:
        _draw(args.chart, plans)
    return Answer({"rows": rows, **({"chart": args.chart} if args.chart else {})}, [_table(plans)])


def _row(path: str, plan: Plan) -> dict[str, object]:
    from planner.replay import depth

    prediction, search = plan.prediction, plan.search
    return {
        "plan": path,
        "model": plan.model_name,
        "schedule": plan.schedule,
        "stages": len(plan.stages),
        "depth": depth(plan),
        "ranks": len(plan.orders),
        "microbatches": plan.batch.num_microbatches,
        "microbatch_size": plan.batch.microbatch_size,
        "step_time_ns": prediction.step_time_ns,
        "span_ns": prediction.span_ns,
        "samples_per_s": plan.batch.global_size * 1e9 / prediction.step_time_ns if prediction.step_time_ns else None,
        "bubble_ratio": prediction.bubble_ratio,
        "peak_memory_bytes": max(prediction.peak_memory_bytes),
        "lower_bound_ns": search.lower_bound_ns,
        "gap": search.gap,
        "scope": search.scope,
        "status": search.status,
    }


def _table(plans: list[tuple[str, Plan]]) -> Table:
    from planner.replay import depth

    columns = ("plan", "schedule", "stages", "depth", "step", "bubble", "peak memory", "lower bound", "gap")
    rows = []
    for path, plan in plans:
        prediction, search = plan.prediction, plan.search
        rows.append(
            (
                path,
                plan.schedule,
                str(len(plan.stages)),
                str(depth(plan)),
                milliseconds(prediction.step_time_ns),
                percent(prediction.bubble_ratio),
                mebibytes(max(prediction.peak_memory_bytes)),
                milliseconds(search.lower_bound_ns),
                percent(search.gap),
            )
        )
    return Table(columns, rows)


def _draw(path: str, plans: list[tuple[str, Plan]]) -> None:
    from planner.pictures import compare_figure
    from simulator.charts import save_figure

    save_figure(compare_figure(plans), path)
