"""Cut a profiled model into a graph of stages, order every rank's work, and prove how good that is.

    penstock plan profile.json --devices 4 --batch 64 -o plan.json

The plan is simulated, checked by an independent checker and written as one JSON file. Ctrl-C keeps the
best plan found so far.
"""

import argparse
import time
from typing import TYPE_CHECKING

from costmodel.cost_model import OPTIMIZER_STATES
from planner.commands.answer import Answer, mebibytes, milliseconds, percent, say
from planner.commands.flags import amount, gibibytes, positive, seconds

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.problem import Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("profile", metavar="PROFILE", help="profile file")
    parser.add_argument("--devices", type=positive, required=True, metavar="N")
    parser.add_argument("--batch", type=positive, required=True, metavar="B", help="samples of one step")
    parser.add_argument("-o", "--output", required=True, metavar="plan.json")
    parser.add_argument("--cluster", metavar="FILE", help="cluster file (default: the device and links of the profile)")
    parser.add_argument("--microbatch-size", type=positive, metavar="b", help="fix it (default: search)")
    parser.add_argument("--schedule", default="auto", metavar="NAME", help="a schedule of the catalogue, or auto")
    parser.add_argument("--planner", default="ours", metavar="NAME", help="ours, or a named baseline such as chain")
    parser.add_argument("--optimizer", default="none", choices=tuple(OPTIMIZER_STATES), help="price and run its step")
    parser.add_argument("--memory-limit", type=gibibytes, metavar="GiB", help="of each device (default: its own)")
    parser.add_argument("--pin", metavar="FILE", help="operators to keep together, or every stage of the plan (TOML)")
    parser.add_argument("--max-stages", type=positive, metavar="K")
    parser.add_argument("--time-limit", type=seconds, default=10.0, metavar="S", help="of the search (default 10)")
    parser.add_argument(
        "--deterministic-limit", type=amount, metavar="X", help="of the solver, in its own units of work"
    )
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> Answer:
    """Plan, check, write."""
    from planner.checker import check_plan
    from planner.plan import write_plan
    from planner.planners import plan

    problem = _problem(args)
    start = time.perf_counter()
    found = plan(problem, progress=say)
    elapsed = time.perf_counter() - start
    problems = check_plan(found, problem.profile.graph)
    if problems:
        raise RuntimeError(f"the checker refuses the plan, which was not written: {problems[0].message}")
    write_plan(args.output, found)
    interrupted = found.search.limited_by == "interrupted"
    return Answer(_body(found, elapsed), _text(args.output, found, elapsed), 130 if interrupted else 0)


def _problem(args: argparse.Namespace) -> "Problem":
    from costmodel.cluster import read_cluster
    from costmodel.profile import read_profile
    from planner.pins import read_pins
    from planner.problem import Problem

    return Problem(
        profile=read_profile(args.profile),
        cluster=read_cluster(args.cluster) if args.cluster else None,
        num_devices=args.devices,
        global_batch=args.batch,
        microbatch_size=args.microbatch_size,
        schedule=args.schedule,
        planner=args.planner,
        optimizer=args.optimizer,
        memory_limit_bytes=args.memory_limit,
        max_stages=args.max_stages,
        time_limit_s=args.time_limit,
        deterministic_limit=args.deterministic_limit,
        seed=args.seed,
        pins=read_pins(args.pin) if args.pin else None,
    )


def _body(plan: "Plan", elapsed: float) -> dict[str, object]:
    from planner.plan import plan_to_json

    prediction, search = plan.prediction, plan.search
    return {
        "status": search.status,
        "step_time_ns": prediction.step_time_ns,
        "samples_per_s": plan.batch.global_size * 1e9 / prediction.step_time_ns if prediction.step_time_ns else None,
        "tokens_per_s": None,
        "mfu": None,
        "best_step_time_ns": search.best_step_time_ns,
        "lower_bound_ns": search.lower_bound_ns,
        "gap": search.gap,
        "scope": search.scope,
        "model_gap": None,
        "strategy": _strategy(plan),
        "search_seconds": elapsed,
        "limited_by": search.limited_by,
        "baselines": dict(search.baselines),
        "stages": plan_to_json(plan)["stages"],
        "schedule": plan.schedule,
        "microbatches": plan.batch.num_microbatches,
        "microbatch_size": plan.batch.microbatch_size,
        "peak_memory_bytes": max(prediction.peak_memory_bytes),
        "runs_on": list(plan.runs_on),
    }


def _strategy(plan: "Plan") -> str:
    """Name the rung: one stage, stages in one line, or stages that form a graph."""
    if len(plan.stages) == 1:
        return "single"
    line = all(edge.target == edge.source + 1 for edge in plan.edges)
    return "pipeline" if line and len(plan.edges) == len(plan.stages) - 1 else "graph-pipeline"


def _text(path: str, plan: "Plan", elapsed: float) -> list[str]:
    from planner.replay import depth

    prediction, search, batch = plan.prediction, plan.search, plan.batch
    rivals = [f"{name} {milliseconds(ns)}" for name, ns in search.baselines.items()]
    return [
        f"{path}: {_strategy(plan)}, {len(plan.stages)} stages in depth {depth(plan)}, {plan.schedule}, "
        f"{batch.num_microbatches} micro-batches of {batch.microbatch_size}",
        f"step time    {milliseconds(prediction.step_time_ns)}   bubble {percent(prediction.bubble_ratio)}",
        f"lower bound  {milliseconds(search.lower_bound_ns)}   gap {percent(search.gap)}, {search.status}",
        f"scope        {search.scope}",
        f"peak memory  {mebibytes(max(prediction.peak_memory_bytes))}",
        *([f"baselines    {', '.join(rivals)}"] if rivals else []),
        f"found in {elapsed:.1f} s" + (f", ended by {search.limited_by}" if search.limited_by else ""),
    ]
