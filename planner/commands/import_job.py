"""``penstock import job``: what somebody runs today, from its trainer's own configuration, as a plan.

Leaves out the reading (`planner.export.job_configs`); ``plan --from`` compares the plan with ours.
"""

import argparse
import os

from costmodel.errors import UsageError
from planner.commands.answer import Answer, say
from planner.commands.checked_output import Output, write_checked
from planner.commands.flags import positive
from planner.export.job_configs.key_table import TRAINERS
from planner.report.summary.text import duration


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("jobs", "a trainer's configuration, as it is run today")
    group.add_argument("--trainer", choices=TRAINERS, help="whose configuration it is (needed)")
    group.add_argument("--world-size", type=positive, metavar="N", help="devices, where the configuration is silent")


def import_job(args: argparse.Namespace) -> Answer:
    """Read the configuration, price its stages, write the plan and say what was left out."""
    from costmodel.model.profile import read_profile
    from planner.export.job_configs.today import todays_plan
    from planner.plan import read_plan, write_plan
    from planner.plan.provenance import rank_limits
    from planner.plan.replica import places_of

    if not args.trainer or not args.model:
        raise UsageError("import job needs --trainer NAME and --model PROFILE, the profile of the job's model")
    if not os.path.isfile(args.model):
        raise UsageError(f"--model {args.model}: there is no such file; give the profile of the job's model")
    plan, facts = todays_plan(args.files[0], args.trainer, read_profile(args.model), args.world_size or 0)
    write_checked([Output(args.output, lambda path: write_plan(path, plan), read_plan)])
    config, peaks = plan.stages[0].config, plan.prediction.peak_memory_bytes
    over = max((peak - limit for peak, limit in zip(peaks, rank_limits(plan), strict=True) if limit), default=0)
    if over > 0:
        say(f"penstock import: by our estimate a rank is over its device's memory by {over / 2**30:.2f} GiB")
    body = {
        "output": args.output,
        "trainer": args.trainer,
        "devices": len(plan.orders),
        "stages": len(places_of(plan)),
        "chunks": len(plan.stages) // len(places_of(plan)),
        **{name: getattr(config, name) for name in ("data", "tensor", "context", "expert", "zero", "recompute")},
        "shard_group": config.shard_group or config.data,
        "expert_tensor": config.expert_tensor,
        "sequence_parallel": config.sequence > 1,
        "offload": config.offload,
        "schedule": plan.schedule,
        "microbatch_size": plan.batch.microbatch_size,
        "microbatches": plan.batch.num_microbatches,
        "batch": plan.batch.global_size,
        "precision": plan.assumptions.precision,
        "optimizer": plan.assumptions.optimizer,
        "step_time_ns": plan.prediction.step_time_ns,
        "ignored": [{"key": key, "why": why} for key, why in facts.ignored],
    }
    degrees = ", ".join(f"{name} {body[name]}" for name in ("stages", "data", "tensor", "context", "expert", "zero"))
    return Answer(
        body,
        [
            f"{args.output}: {args.trainer} on {body['devices']} devices, {degrees}, {plan.schedule}, "
            f"{body['precision'] or 'as profiled'}, {body['optimizer']}, "
            f"{plan.batch.num_microbatches} micro-batches of {plan.batch.microbatch_size}: "
            f"{duration(plan.prediction.step_time_ns)}",
            *(f"ignored {key}: {why}" for key, why in facts.ignored),
        ],
    )
