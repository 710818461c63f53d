"""Cut a profiled model into a graph of stages, order every rank's work, and prove how good that is.

    penstock plan profile.json --devices 4 --batch 64 -o plan.json

The plan is simulated, checked by an independent checker and written as one JSON file. Ctrl-C keeps the
best plan found so far.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from costmodel.stages.config import OFFLOAD, RECOMPUTE
from costmodel.stages.measured import OPTIMIZER_STATES
from planner.commands.answer import Answer, mebibytes, milliseconds, percent, say
from planner.commands.flags import amount, gibibytes, positive, seconds

TARGETS = ("executor", "torchtitan", "megatron", "deepspeed", "any")
PRECISIONS = ("fp32", "fp16", "bf16", "fp8")
DEGREES = {
    "stages": "places in the pipeline",
    "chunks": "stages a place",
    "data": "replicas",
    "tensor": "tensor-parallel ranks",
    "context": "ranks that divide the sequence",
    "expert": "ranks that divide experts, of the data and context ones",
}

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.problem import Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "profiles", nargs="+", metavar="PROFILE", help="profile file; on a mixed cluster one a device type"
    )
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
    parser.add_argument("--target", choices=TARGETS, default="", help="trainer that must take the plan, or any")
    parser.add_argument("--seed", type=int, default=0)
    _add_choices(parser)


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that fix a choice for every stage."""
    fixed = parser.add_argument_group(
        "choices", "each fixes that choice for every stage: devices = stages x data x tensor x context"
    )
    for name, text in DEGREES.items():
        fixed.add_argument(f"--{name}", type=positive, metavar="N", help=text)
    fixed.add_argument("--sequence-parallel", action="store_true", help="divide norms among the tensor-parallel ranks")
    fixed.add_argument("--zero", type=int, choices=range(4), help="ZeRO stage (FSDP is 2 or 3)")
    fixed.add_argument("--recompute", choices=RECOMPUTE)
    fixed.add_argument("--offload", choices=OFFLOAD, help="to host memory")
    fixed.add_argument("--precision", choices=PRECISIONS, help="of training (default: the profile's)")


def run(args: argparse.Namespace) -> Answer:
    """Plan, check, write."""
    from planner.checker import check_plan
    from planner.plan import write_plan
    from planner.planners import plan
    from planner.report.rates import mfu, tokens_per_s

    problem = _problem(args)
    start = time.perf_counter()
    found = plan(problem, progress=say)
    elapsed = time.perf_counter() - start
    problems = check_plan(found, problem.profile.graph)
    if problems:
        raise RuntimeError(f"the checker refuses the plan, which was not written: {problems[0].message}")
    write_plan(args.output, found)
    interrupted = found.search.limited_by == "interrupted"
    rates = {"tokens_per_s": tokens_per_s(found, problem.profile), "mfu": mfu(found, problem.profile)}
    return Answer(_body(found, elapsed, rates), _text(args.output, found, elapsed, rates), 130 if interrupted else 0)


def _problem(args: argparse.Namespace) -> "Problem":
    from costmodel.machines.cluster import read_cluster
    from costmodel.model.profile import read_profile
    from planner.choices import Choices
    from planner.pins import read_pins
    from planner.problem import Problem

    profile, *others = map(read_profile, args.profiles)
    return Problem(
        profile=profile,
        other_profiles=tuple(others),
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
        choices=Choices(**{field.name: getattr(args, field.name) for field in fields(Choices)}),
        target=args.target,
    )


def _body(plan: "Plan", elapsed: float, rates: Mapping[str, float | None]) -> dict[str, object]:
    from planner.plan import plan_to_json
    from planner.plan.rung import rung

    prediction, search = plan.prediction, plan.search
    return {
        "status": search.status,
        "step_time_ns": prediction.step_time_ns,
        "samples_per_s": plan.batch.global_size * 1e9 / prediction.step_time_ns if prediction.step_time_ns else None,
        **rates,
        "best_step_time_ns": search.best_step_time_ns,
        "lower_bound_ns": search.lower_bound_ns,
        "gap": search.gap,
        "scope": search.scope,
        "model_gap": None,
        "strategy": rung(plan),
        "search_seconds": elapsed,
        "limited_by": search.limited_by,
        "baselines": dict(search.baselines),
        "stages": plan_to_json(plan)["stages"],
        "schedule": plan.schedule,
        "microbatches": plan.batch.num_microbatches,
        "microbatch_size": plan.batch.microbatch_size,
        "peak_memory_bytes": max(prediction.peak_memory_bytes),
        "peak_memory_upper_bytes": max(prediction.peak_memory_upper_bytes),
        "estimated": plan.provenance.get("estimated", []),
        "runs_on": list(plan.runs_on),
    }


def _text(path: str, plan: "Plan", elapsed: float, rates: Mapping[str, float | None]) -> list[str]:
    from planner.plan.replay import depth
    from planner.plan.rung import rung

    prediction, search, batch = plan.prediction, plan.search, plan.batch
    rivals = [f"{name} {milliseconds(ns)}" for name, ns in search.baselines.items()]
    return [
        f"{path}: {rung(plan)}, {len(plan.stages)} stages in depth {depth(plan)}, {plan.schedule}, "
        f"{batch.num_microbatches} micro-batches of {batch.microbatch_size}",
        f"step time    {milliseconds(prediction.step_time_ns)}   bubble {percent(prediction.bubble_ratio)}",
        f"lower bound  {milliseconds(search.lower_bound_ns)}   gap {percent(search.gap)}, {search.status}",
        f"scope        {search.scope}",
        *([_per_second(plan, rates)] if rates["tokens_per_s"] else []),
        f"peak memory  {mebibytes(max(prediction.peak_memory_bytes))}, at most "
        f"{mebibytes(max(prediction.peak_memory_upper_bytes))}",
        f"runs on      {', '.join(plan.runs_on) or 'no trainer as it is'}",
        *_transfers(plan),
        *([f"baselines    {', '.join(rivals)}"] if rivals else []),
        f"found in {elapsed:.1f} s" + (f", ended by {search.limited_by}" if search.limited_by else ""),
    ]


def _transfers(plan: "Plan") -> list[str]:
    """Say so where messages are priced without anybody's measurement."""
    options = plan.provenance.get("options")
    how = str(options.get("transfers", "priced")) if isinstance(options, dict) else "priced"
    return [] if how == "priced" else [f"transfers    {how}; profile with links, or name them with --cluster"]


def _per_second(plan: "Plan", rates: Mapping[str, float | None]) -> str:
    samples = plan.batch.global_size * 1e9 / plan.prediction.step_time_ns
    used = f", {percent(rates['mfu'])} of the devices' peak" if rates["mfu"] else ""
    return f"a second     {samples:.1f} samples, {rates['tokens_per_s']:.0f} tokens{used}"
