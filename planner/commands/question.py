"""What every command that plans is asked, as flags and as a problem: model, machines, what is fixed, the trainer.

Leaves out what a command does with the problem.
"""

import argparse
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from costmodel.errors import InvalidInput
from costmodel.machines.catalogue import PRECISIONS
from costmodel.roofline import OPTIMIZERS
from costmodel.roofline.narrow import RECIPES
from costmodel.stages.config import OFFLOAD, RECOMPUTE
from costmodel.stages.strategies.trainers import DISPATCHERS, KERNELS, SAID, SELECTIVE, trainers
from planner.commands.flags import few_bytes, few_percent, gibibytes, limit, positive, rank_order, room, seed
from planner.plan.rank_order import RANK_ORDER

if TYPE_CHECKING:
    from costmodel.model.profile import Profile
    from planner.plan import Plan
    from planner.question.pins import Pins
    from planner.question.problem import Problem
    from planner.question.space import Space

TARGETS = ("executor", "torchtitan", "megatron", "deepspeed", "any")
DEGREES = {
    "stages": "places in the pipeline",
    "chunks": "stages a place",
    "data": "replicas",
    "tensor": "tensor-parallel ranks",
    "context": "ranks that divide the sequence",
    "expert": "ranks over which experts spread: data, context and tensor ones",
    "expert-tensor": "ranks that divide each expert (default: the tensor ones, or search)",
}

HABITS = {
    "flash": "attention keeps no scores",
    "graphs": "kernels are launched as CUDA graphs, so that the host takes nothing",
    "overlap": "sum gradients during the backward",
    "overlap-gathers": "gather parameters ahead of use",
    "overlap-tensor": "sum tensor-parallel gradients during gradient matmuls",
    "overlap-experts": "send tokens to experts during another micro-batch's compute",
    "summed-in-place": "sum gradients in the buffer that they are kept in",
    "fused": "norms and elementwise operators in few kernels",
}
WIDTHS = {
    "bucket-mib": "of a sum of gradients",
    "loss-bytes": "alive of a logit at the loss's peak",
    "gradient-bytes": "of a gradient in mixed precision, no less than the weight's",
    "main-weight-bytes": "of a weight beyond its 16 bits in mixed precision",
    "experts-together": "of a token, that lie side by side",
}


def add_question(parser: argparse.ArgumentParser, limit_of: str, devices_of: str = "") -> None:
    """Declare what is asked: the model, the machines, what is fixed, and for how long a plan is sought.

    The number of devices may be left out where `devices_of` says what it is of.
    """
    parser.set_defaults(old_plan=None, exact=False, price=[])
    parser.add_argument(
        "profiles", nargs="+", metavar="PROFILE", help="profile file; on a mixed cluster one a device type"
    )
    parser.add_argument("--devices", type=positive, required=not devices_of, metavar="N", help=devices_of or None)
    parser.add_argument("--batch", type=positive, required=True, metavar="B", help="samples of one step")
    parser.add_argument("--cluster", metavar="FILE", help="cluster file (default: the device and links of the profile)")
    parser.add_argument("--microbatch-size", type=positive, metavar="b", help="fix it (default: search)")
    parser.add_argument("--schedule", default="auto", metavar="NAME", help="a schedule of the catalogue, or auto")
    parser.add_argument(
        "--planner",
        default="ours",
        metavar="NAME",
        help="ours, or one to compare with: chain, single, data-parallel, uniform, parameters, megatron-uniform, "
        "pipedream, piper, alpa, graphpipe",
    )
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), help="price its step and states (default adam)")
    _add_room(parser)
    parser.add_argument("--pin", metavar="FILE", help="operators to keep together, or every stage of the plan (TOML)")
    parser.add_argument("--max-stages", type=positive, metavar="K")
    parser.add_argument("--time-limit", type=limit, default=10.0, metavar="S", help=limit_of)
    parser.add_argument(
        "--deterministic-limit", type=limit, metavar="X", help="of the solver, in its own units of work; 0 = without it"
    )
    parser.add_argument(
        "--target",
        choices=TARGETS,
        default="",
        help="trainer that must take the plan, or any (default: executor for profiles of torch modules, else any)",
    )
    parser.add_argument("--seed", type=seed, default=0)
    _add_choices(parser)
    add_trainer(parser)


def _add_room(parser: argparse.ArgumentParser) -> None:
    """Declare what memory there is, and which of two plans near each other is chosen."""
    parser.add_argument("--memory-limit", type=gibibytes, metavar="GiB", help="of each device (default: its own)")
    parser.add_argument(
        "--memory-margin", type=room, default=0, metavar="GiB", help="to stay free beyond the upper bound (default 0)"
    )
    parser.add_argument(
        "--allow-tight", action="store_true", help="prefer a faster plan that may not fit to a slower one that fits"
    )
    parser.add_argument(
        "--simplicity",
        type=few_percent,
        default=0.01,
        metavar="PERCENT",
        help="by how much a plan of fewer mechanisms may be slower than the best and be chosen (default 1)",
    )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that fix a choice for every stage."""
    fixed = parser.add_argument_group("choices", "each fixes that choice for every stage; what is left out is searched")
    for name, text in DEGREES.items():
        fixed.add_argument(f"--{name}", type=positive, metavar="N", help=text)
    fixed.add_argument(
        "--sequence-parallel", action="store_true", default=None, help="divide norms among the tensor-parallel ranks"
    )
    fixed.add_argument(
        "--layers", metavar="equal|N,N,...", help="layers of each stage, or as trainers cut them (with --stages)"
    )
    fixed.add_argument("--zero", type=int, choices=range(4), help="ZeRO stage (FSDP is 2 or 3)")
    fixed.add_argument(
        "--shard-group", type=positive, metavar="N", help="data-parallel replicas that divide states under ZeRO (HSDP)"
    )
    fixed.add_argument("--recompute", choices=RECOMPUTE)
    fixed.add_argument(
        "--recompute-layers", type=positive, metavar="K", help="of each stage, the first ones (default: all, or search)"
    )
    fixed.add_argument("--offload", choices=OFFLOAD, help="to host memory")
    fixed.add_argument(
        "--rank-order",
        type=rank_order,
        metavar="NAME,NAME,...",
        help=f"what stands next to each other on the cluster, innermost first (usually {','.join(RANK_ORDER)})",
    )
    fixed.add_argument("--precision", choices=PRECISIONS, help="of training (default: the profile's)")


def add_trainer(parser: argparse.ArgumentParser) -> None:
    """Declare whose habits stages are priced by, and the flags that tell one of them otherwise."""
    habits = parser.add_argument_group("habits", "of the trainer, each as it usually has it (docs/strategies.md)")
    habits.add_argument(
        "--trainer",
        default="",
        metavar="NAME",
        help=f"{', '.join(trainers())} (default: the target; under any the executor for profiles of torch modules, "
        "else megatron)",
    )
    for name, text in HABITS.items():
        habits.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=text)
    for name, text in WIDTHS.items():
        kind = few_bytes if name.endswith("-bytes") else positive
        habits.add_argument(f"--{name}", type=kind, metavar="N", help=text)
    habits.add_argument("--attention", choices=KERNELS, help="its kernel; math keeps scores")
    habits.add_argument("--selective", choices=SELECTIVE, help="what --recompute selective runs again")
    habits.add_argument("--fp8-recipe", choices=RECIPES, help="where its scales come from")
    habits.add_argument("--dispatcher", choices=DISPATCHERS, help="of tokens to experts on other ranks")
    parser.add_argument("--calibration", metavar="FILE", help="constants of your own machines, from penstock fit")


def said(args: argparse.Namespace) -> dict[str, object]:
    """Return the habits that flags tell."""
    found = {name: getattr(args, name) for name in SAID}
    return {name: value for name, value in found.items() if value is not None}


def _old_plan(path: str) -> "Plan":
    """Read the plan to start from."""
    from planner.plan import read_plan

    try:
        return read_plan(path)
    except InvalidInput as error:
        raise InvalidInput(
            f"{error} (--from takes plans, and what `penstock import job` makes of a trainer's configuration)"
        ) from None


def problem_of(args: argparse.Namespace, start: float) -> "Problem":
    """Read the files; the time that this takes is taken from the limit of the search."""
    from costmodel.calibration import published, read_calibration
    from costmodel.machines.cluster import read_cluster
    from costmodel.model.profile import read_profile
    from planner.plan.provenance import job_of
    from planner.question.effort import Effort
    from planner.question.prices import read_prices
    from planner.question.problem import Problem

    profile, *others = map(read_profile, args.profiles)
    old_plan = _old_plan(args.old_plan) if args.old_plan else None
    job = job_of(old_plan) if old_plan else None
    space, pins = _fixed(args, profile)
    same = ("microbatch_size", "schedule", "planner", "exact", "allow_tight", "simplicity", "max_stages", "target")
    return Problem(
        profile=profile,
        other_profiles=tuple(others),
        cluster=read_cluster(args.cluster) if args.cluster else None,
        num_devices=args.devices,
        global_batch=args.batch,
        optimizer=args.optimizer or (job.optimizer if job else "adam"),
        precision=args.precision or (job.precision if job else ""),
        memory_limit_bytes=args.memory_limit,
        memory_margin_bytes=args.memory_margin,
        pins=pins,
        old_plan=old_plan,
        space=space,
        trainer=args.trainer or (job.convention if job else ""),
        habits={**(job.habits if job else {}), **said(args)},
        calibration=read_calibration(args.calibration) if args.calibration else published(),
        prices=read_prices(args.price) if args.price else None,
        effort=Effort(args.time_limit, args.deterministic_limit, args.seed, time.perf_counter() - start),
        **{name: getattr(args, name) for name in same},
    )


def _fixed(args: argparse.Namespace, profile: "Profile") -> "tuple[Space, Pins | None]":
    """Return what flags and the pin file fix."""
    from planner.question.layer_pins import with_layers
    from planner.question.pins import read_pins
    from planner.question.space import Space

    pins = read_pins(args.pin) if args.pin else None
    space = Space(**{field.name: getattr(args, field.name) for field in fields(Space)})
    if space.recompute_layers and space.recompute is None:
        space = replace(space, recompute="full")
    return with_layers(profile.graph, args.layers, space, pins) if args.layers else (space, pins)
