"""Predict the timeline and memory of a plan, or of a schedule by name.

    penstock simulate plan.json --chart timeline.png --trace trace.json
    penstock simulate plan.json --memory-snapshot 0=snapshot.json
    penstock simulate --schedule zb-h1 --ranks 8 --microbatches 32 --forward-ns 1000
    penstock simulate --schedule graph-1f1b --microbatches 16 --costs costs.json
    penstock simulate --schedule orders.csv --microbatches 8 --forward-ns 1000

A schedule is a name of the catalogue or a CSV of orders as torch writes them (one row a rank, cells like 0F0).
Without --costs, the --..-ns times are those of all of one rank's work for one micro-batch, and memory is in
activation shares (peak_activations, no bytes); with --costs and for plans it is in bytes. graph-zb goes on seeking
better orders until they are proved, for 20 s at most or --time-limit. --recompute puts an R, a forward run again,
before each backward of some stages: without --costs it takes as long as the forward; with --memory-limit it runs
earlier where a rank idles and the limit allows it. --offload copies what forwards keep to the host and back, during
compute, where both copies fit before the backward: the step takes as long as without. --memory-snapshot holds a plan's
memory against what a rank held: torch's memory snapshot as JSON (docs/guide.md).
"""

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from costmodel.errors import NoPlanFits, UsageError
from planner.commands.answer import Answer
from planner.commands.by_name import UNIFORM, check_pairs, costs_of, given_orders, remade, slices_of
from planner.commands.flags import exact_amount, fraction, limit, nanoseconds, positive, seed
from planner.commands.timeline_answer import timeline_answer

if TYPE_CHECKING:
    from costmodel.stages.costs import Costs
    from simulator.schedule import Schedule
    from simulator.timeline import Timeline

P2P_MODES = ("latency", "blocking", "links", "nccl")
OPTIMIZER_MODES = ("independent", "global-norm", "post-validated")
POLISHED, POLISHED_S = "graph-zb", 20.0
"""The schedule that a solver improves, and the seconds that it takes at most unless told otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="plan file")
    parser.add_argument("--schedule", metavar="NAME", help="a schedule of the catalogue, or a CSV of orders")
    parser.add_argument("--microbatches", type=positive, metavar="M")
    parser.add_argument("--costs", metavar="FILE", help="costs of each stage and edge (penstock-costs)")
    parser.add_argument("--ranks", type=positive, metavar="P")
    parser.add_argument("--forward-ns", type=nanoseconds, metavar="T", help="F of a rank's whole work (default 1000)")
    parser.add_argument("--backward-input-ns", type=nanoseconds, metavar="T", help="I (default 1000)")
    parser.add_argument("--backward-weight-ns", type=nanoseconds, metavar="T", help="W (default 1000)")
    parser.add_argument("--p2p-ns", type=nanoseconds, metavar="T", help="delay between two ranks (default 0)")
    parser.add_argument("--pair-ns", type=nanoseconds, metavar="T",
                        help="an overlapped F and B of a rank's whole work (default: no overlap)")  # fmt: skip
    parser.add_argument("--chunks", type=positive, metavar="V", help="stages a rank (default: the schedule's)")
    parser.add_argument("--slices", type=positive, metavar="S", help="sequence slices of seq1f1b (default 2)")
    parser.add_argument(
        "--w-memory-fraction", type=fraction, metavar="f", help="part kept from I until W (default 0.5)"
    )
    parser.add_argument(
        "--group-size",
        type=positive,
        metavar="G",
        help="of interleaved-1f1b and group-interleaved (default: the ranks)",
    )
    parser.add_argument("--recompute", type=_stages, metavar="STAGES",
                        help="run forwards again before backwards, of all stages or of some (0,3)")  # fmt: skip
    parser.add_argument("--offload", type=_stages, metavar="STAGES",
                        help="copy activations to the host and back where nothing waits (all, or 0,3)")  # fmt: skip
    parser.add_argument("--offload-ns", type=nanoseconds, metavar="T",
                        help="copy of what a rank keeps of a micro-batch, one way")  # fmt: skip
    parser.add_argument(
        "--memory-limit", type=exact_amount, metavar="X", help="activation shares, or bytes with --costs"
    )
    parser.add_argument("--objective", choices=("span", "step"), help="of a synthesis (default span)")
    parser.add_argument("--time-limit", type=limit, metavar="S", help="of a synthesis; 0 = heuristic alone")
    parser.add_argument("--p2p", choices=P2P_MODES, default="latency", help="how transfers take time")
    parser.add_argument("--optimizer-mode", choices=OPTIMIZER_MODES, default="independent")
    parser.add_argument("--memory-snapshot", action="append", default=[], metavar="RANK=FILE",
                        help="what a rank of the plan held (JSON); again for others")  # fmt: skip
    parser.add_argument("--trace", metavar="F", help="write a Perfetto trace")
    parser.add_argument("--chart", metavar="F", help="draw timeline and memory (.png, .svg or .pdf)")
    parser.add_argument("--seed", type=seed, default=0)


def run(args: argparse.Namespace) -> Answer:
    """Simulate the plan, or the schedule by name."""
    return _simulate_plan(args) if args.plan else _simulate_schedule(args)


def _simulate_plan(args: argparse.Namespace) -> Answer:
    from planner.plan import read_plan
    from planner.plan.lockstep import spread
    from planner.report.why.one_replica import everything, simulated
    from simulator.engine import simulate

    given = [
        name
        for name in ("schedule", "microbatches", "costs", "recompute", "offload", *UNIFORM)
        if getattr(args, name) is not None
    ]
    if given:
        raise UsageError(f"--{given[0].replace('_', '-')} does not go with a plan file, which has its own")
    plan = read_plan(args.plan)
    of = everything(plan) if args.trace else simulated(plan)
    timeline = simulate(of.schedule, of.costs, args.p2p, args.optimizer_mode, of.speeds)
    extra = {
        "ranks": len(plan.orders),
        "peak_memory_bytes": list(spread(of.blocks, timeline.peak_memory_bytes)),
    }
    answer = timeline_answer(
        args, of.schedule, of.costs, timeline, None, extra, speeds=of.speeds, blocks=of.blocks, replicas=of.replicas
    )
    if not args.memory_snapshot:
        return answer
    from planner.measured.snapshots import held_rows, held_table

    rows = held_rows(plan, args.memory_snapshot)
    return replace(answer, json={**answer.json, "memory_snapshots": rows}, text=[*answer.text, held_table(rows)])


def _simulate_schedule(args: argparse.Namespace) -> Answer:
    from simulator.engine import simulate
    from simulator.schedules import SCHEDULES, build_schedule

    if not args.schedule or not args.microbatches:
        raise UsageError("give a plan file, or --schedule NAME with --microbatches M")
    if args.memory_snapshot:
        raise UsageError("--memory-snapshot goes with a plan file, whose ranks it is of")
    given = given_orders(args)
    costs, share_bytes = costs_of(args, given)
    limit = None if args.memory_limit is None else int(args.memory_limit * (share_bytes or 1))
    check_pairs(args, given)
    if args.schedule == POLISHED and args.objective == "span":
        raise UsageError(f"{POLISHED} minimises the step; leave --objective out, or take zb-auto")
    start = time.perf_counter()
    compute, proved_ns = given, 0
    if compute is None:
        compute = build_schedule(
            args.schedule,
            costs,
            args.microbatches,
            group_size=args.group_size,
            memory_limit_bytes=limit,
            objective=args.objective or "span",
            num_slices=slices_of(args),
            seed=args.seed,
        )
        if args.schedule == POLISHED:
            compute, proved_ns = _polished(args, compute, costs, limit, start)
    if args.recompute is not None or args.offload is not None:
        compute, costs = remade(args, compute, costs, limit)
        proved_ns = 0  # of orders that keep their activations
    elif args.offload_ns is not None:
        raise UsageError("--offload-ns goes with --offload, which says whose activations are copied")
    elapsed = time.perf_counter() - start
    synthesis = given is None and SCHEDULES[args.schedule].synthesis
    schedule = _closed(compute, costs)
    if args.p2p == "nccl":
        from simulator.lowering import lower

        schedule = lower(schedule, simulate(schedule, costs))
    timeline = simulate(schedule, costs, p2p=args.p2p, optimizer_mode=args.optimizer_mode)
    _check_limit(args, timeline, limit, share_bytes)
    extra: dict[str, object] = {"search_seconds": elapsed} if synthesis else {}
    if share_bytes:
        extra["peak_activations"] = [peak / share_bytes for peak in timeline.peak_memory_bytes]
        extra["peak_memory_bytes"] = None  # shares have no size
    return timeline_answer(args, schedule, costs, timeline, limit, extra, share_bytes, proved_ns=proved_ns)


def _stages(text: str) -> tuple[int, ...]:
    """Read a list of stages; an empty one means all of them."""
    parts = text.split(",")
    if text != "all" and not all(part.strip().isdecimal() and part.isascii() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: give all, or numbers of stages as 0,3")
    return () if text == "all" else tuple(map(int, parts))


def _polished(
    args: argparse.Namespace, schedule: "Schedule", costs: "Costs", limit: int | None, start: float
) -> tuple["Schedule", int]:
    """Improve what the heuristics found in what is left of the time; return the bound that was proved, too."""
    from planner.synthesis.polish import polished

    left = (POLISHED_S if args.time_limit is None else args.time_limit) - (time.perf_counter() - start)
    found = polished(schedule, costs, limit, left, args.seed)
    return found.schedule, found.bound_ns


def _closed(schedule: "Schedule", costs: "Costs") -> "Schedule":
    """Add the reductions and optimizer steps that the costs ask for."""
    from simulator.lowering import close_step

    reduces = [stage.reduce_ns > 0 and stage.backward for stage in costs.stages]
    return close_step(schedule, reduces, any(stage.optimizer_ns for stage in costs.stages))


def _check_limit(args: argparse.Namespace, timeline: "Timeline", limit: int | None, share_bytes: int) -> None:
    """Refuse a fixed order that needs more than the limit."""
    peak = max(timeline.peak_memory_bytes)
    if limit is None or peak <= limit:
        return
    rank = timeline.peak_memory_bytes.index(peak)
    unit = "activation shares" if share_bytes else "bytes"
    needed, allowed = peak / (share_bytes or 1), float(args.memory_limit)
    raise NoPlanFits(
        f"{args.schedule} needs {needed:g} {unit} on rank {rank}, the limit is {allowed:g}; raise --memory-limit by "
        "the difference or choose a schedule that plans within a limit (graph-zb, zb-auto, zb-v)"
    )
