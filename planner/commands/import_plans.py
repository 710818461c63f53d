"""The part of ``penstock import`` that makes plans: torch's CSV of orders, and Megatron-LM's layouts.

They say where stages and micro-batches are; costs, degrees and batch come from flags. Leaves out every other format.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import UsageError
from costmodel.roofline import OPTIMIZERS
from costmodel.stages.config import RECOMPUTE
from planner.commands.answer import Answer, say
from planner.commands.checked_output import Output, write_checked
from planner.commands.flags import positive

if TYPE_CHECKING:
    from costmodel.stages.config import StageConfig
    from planner.plan import Plan
    from planner.question.problem import Problem

FORMATS = ("torch-csv", "megatron-layout")


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("plans", "torch-csv and megatron-layout, which say neither costs nor degrees")
    group.add_argument("--profile", metavar="FILE", help="profile of the model (needed)")
    group.add_argument("--cluster", metavar="FILE", help="cluster file (default: the profile's device and links)")
    group.add_argument("--parts", metavar="FILE", help="torch-csv: JSON list of what each stage holds (default: equal)")
    group.add_argument("--stages", type=positive, metavar="P", help="megatron-layout: places in the pipeline (needed)")
    group.add_argument("--batch", type=positive, metavar="B", help="megatron-layout: samples of one step (needed)")
    for name in ("data", "tensor", "context", "expert"):
        group.add_argument(f"--{name}", type=positive, default=1, metavar="N", help="degree of every stage (default 1)")
    group.add_argument("--expert-tensor", type=positive, metavar="N", help="ranks that divide each expert (tensor)")
    group.add_argument("--sequence-parallel", action="store_true", help="as of plan")
    group.add_argument("--zero", type=int, choices=range(4), default=0, help="ZeRO stage of every stage (default 0)")
    group.add_argument("--shard-group", type=positive, metavar="N", help="as of plan (default: all replicas)")
    group.add_argument("--recompute", choices=RECOMPUTE, default="none", help="of every stage (default none)")
    group.add_argument("--precision", choices=("fp32", "fp16", "bf16", "fp8", "nvfp4"), default="", help="of training")
    group.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adam")


def import_plan(args: argparse.Namespace) -> Answer:
    """Read stages and orders, price them, write the plan."""
    from planner.plan import read_plan, write_plan

    if not args.profile:
        raise UsageError(f"import {args.format} makes a plan, whose costs a profile gives; give --profile FILE")
    plan = _layout(args) if args.format == "megatron-layout" else _torch_csv(args)
    write_checked([Output(args.output, lambda path: write_plan(path, plan), read_plan)])
    prediction = plan.prediction
    body = {
        "output": args.output,
        "stages": len(plan.stages),
        "devices": len(plan.orders),
        "schedule": plan.schedule,
        "microbatches": plan.batch.num_microbatches,
        "step_time_ns": prediction.step_time_ns,
        "peak_memory_bytes": list(prediction.peak_memory_bytes),
        "runs_on": list(plan.runs_on),
    }
    text = (
        f"{args.output}: {len(plan.stages)} stages on {len(plan.orders)} devices, {plan.schedule}, "
        f"{prediction.step_time_ns / 1e6:.3f} ms, at most {max(prediction.peak_memory_bytes) / 2**30:.2f} GiB"
    )
    return Answer(body, [text])


def _config(args: argparse.Namespace) -> "StageConfig":
    from costmodel.stages.config import StageConfig

    sequence = args.tensor if args.sequence_parallel else 1
    return StageConfig(
        args.data, args.tensor, sequence, args.context, args.expert, args.zero, args.recompute,
        shard_group=args.shard_group or 0, expert_tensor=args.expert_tensor or 0,
    )  # fmt: skip


def _problem(args: argparse.Namespace, num_places: int, batch: int, target: str) -> "Problem":
    from costmodel.machines.cluster import read_cluster
    from costmodel.model.profile import read_profile
    from planner.question.problem import Problem
    from planner.question.space import Space

    profile = read_profile(args.profile)
    names = ("data", "tensor", "context", "expert", "expert_tensor", "zero", "shard_group", "recompute")
    degrees = {name: getattr(args, name) for name in names}
    return Problem(
        profile,
        read_cluster(args.cluster) if args.cluster else None,
        num_places * args.data * args.tensor * args.context,
        batch,
        microbatch_size=args.microbatch_size,
        optimizer=args.optimizer,
        precision=args.precision,
        target=target,
        trainer=target or "torchtitan",
        space=Space(stages=num_places, sequence_parallel=args.sequence_parallel or None, **degrees),
    )


def _layout(args: argparse.Namespace) -> "Plan":
    from planner.export.given import given_plan
    from planner.export.read_layout import read_layout
    from planner.question.in_stage_support import config_refusal
    from planner.question.pipeline_support import not_taken

    if not args.stages or not args.batch:
        raise UsageError("a layout says neither its pipeline's ranks nor the batch; give --stages and --batch")
    problem = _problem(args, args.stages, args.batch, "megatron")
    path = Path(args.files[0])
    text = path.read_text(encoding="utf-8") if os.path.isfile(path) else args.files[0]
    wrong = config_refusal("megatron", _config(args), pipelined=True)
    if wrong:
        raise UsageError(f"Megatron-LM does not run {wrong} in a pipeline; give the degrees that your job has")
    count = args.batch // (args.microbatch_size * args.data)
    given = read_layout(text, problem.profile.graph, args.stages, _config(args), count)
    plan = given_plan(problem, given)
    idle = args.stages * given.config.data * given.config.tensor * given.config.context - len(plan.orders)
    if idle:
        say(
            f"penstock import: {idle} devices hold empty stages alone and are none of the plan's; its rates are of the "
            f"other {len(plan.orders)}"
        )
    reason = "" if given.orders else not_taken("megatron", plan)  # an empty stage has no place in a plan
    if reason:
        say(f"penstock import: Megatron-LM does not run this: {reason}")
    return plan


def _torch_csv(args: argparse.Namespace) -> "Plan":
    from planner.export.given import given_plan
    from planner.export.read_torch_csv import given_by_csv
    from simulator.torch_csv import read_torch_csv

    if args.stages or args.batch:
        raise UsageError(
            "a CSV of orders says its stages and micro-batches itself; drop --stages and --batch, and give "
            "--microbatch-size"
        )
    schedule = read_torch_csv(args.files[0])
    batch = schedule.num_microbatches * args.microbatch_size * args.data
    problem = _problem(args, schedule.graph.num_ranks, batch, "")
    parts = Path(args.parts) if args.parts else None
    return given_plan(problem, given_by_csv(args.files[0], schedule, problem.profile.graph, _config(args), parts))
