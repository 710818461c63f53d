"""What ``simulate --schedule`` is asked about: a schedule by name or of a user's own CSV, and its costs."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from costmodel import limits
from costmodel.errors import UsageError
from planner.commands.answer import say

if TYPE_CHECKING:
    from costmodel.stages.costs import Costs
    from simulator.schedule import Schedule

UNIFORM = ("ranks", "forward_ns", "backward_input_ns", "backward_weight_ns", "p2p_ns", "pair_ns", "offload_ns",
           "chunks", "w_memory_fraction")  # fmt: skip


def given_orders(args: argparse.Namespace) -> "Schedule | None":
    """Return the orders of a user's own CSV; None for a name of the catalogue."""
    if not args.schedule.lower().endswith(".csv"):
        return None
    from simulator.torch_csv import read_torch_csv

    schedule = read_torch_csv(args.schedule)
    if schedule.num_microbatches != args.microbatches:
        raise UsageError(f"{args.schedule} has {schedule.num_microbatches} micro-batches, not {args.microbatches}")
    for name in ("group_size", "slices", "objective", "chunks"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} does not go with a CSV of orders, which fixes it")
    return schedule


def costs_of(args: argparse.Namespace, given: "Schedule | None") -> tuple["Costs", int]:
    """Return the costs, and the bytes of one activation share (0 when memory is in bytes)."""
    from costmodel.stages.costs_file import read_costs
    from simulator.schedules import SCHEDULES
    from simulator.uniform import pair_costs, share_bytes, uniform_costs

    if args.costs:
        both = [name for name in UNIFORM if getattr(args, name) is not None]
        if both:
            raise UsageError(f"--{both[0].replace('_', '-')} does not go with --costs, which gives every stage its own")
        costs = read_costs(args.costs, args.microbatches)
        _check_size(args, len(costs.stages))
        if given and costs.ranks != given.graph.ranks:
            raise UsageError(f"{args.schedule} places its stages on {given.graph.ranks}, {args.costs} on {costs.ranks}")
        return costs, 0
    ranks, chunks, placement = _shape(args, given)
    _check_size(args, ranks * chunks)
    kind = SCHEDULES.get(args.schedule)
    kept = 0.5 if args.w_memory_fraction is None else args.w_memory_fraction
    given_ns = (args.forward_ns, args.backward_input_ns, args.backward_weight_ns)
    forward_ns, input_ns, weight_ns = (1000 if value is None else value for value in given_ns)
    slices = slices_of(args) if kind else 1
    costs = uniform_costs(
        ranks, chunks, forward_ns, input_ns, weight_ns, args.p2p_ns or 0, kept, placement, slices, args.pair_ns,
        args.offload_ns or 0,
    )  # fmt: skip
    if given:
        pairs = () if args.pair_ns is None else pair_costs(given.graph.ranks, args.pair_ns, chunks)
        costs = replace(costs, ranks=given.graph.ranks, pairs=pairs)
    return costs, share_bytes(chunks, kept, slices)


def _shape(args: argparse.Namespace, given: "Schedule | None") -> tuple[int, int, str]:
    """Return ranks, stages a rank, and placement."""
    from simulator.schedules import SCHEDULES

    if given:
        ranks, stages = given.graph.num_ranks, given.graph.num_stages
        if args.ranks not in (None, ranks) or stages % ranks:
            raise UsageError(
                f"{args.schedule} has {stages} stages on {ranks} ranks; --ranks has to agree, and the stages to divide "
                "evenly (or give --costs FILE)"
            )
        return ranks, stages // ranks, "loop"
    if not args.ranks:
        raise UsageError("give --ranks P (all ranks alike), or --costs FILE")
    kind = SCHEDULES.get(args.schedule)
    return args.ranks, args.chunks or (kind.chunks if kind else 1), kind.placement if kind else "loop"


def _check_size(args: argparse.Namespace, num_stages: int) -> None:
    """Refuse more actions than there may be, and announce many, before any of them is made."""
    from simulator.schedules import SCHEDULES

    kinds = 3 if args.schedule not in SCHEDULES or SCHEDULES[args.schedule].split else 2
    number = num_stages * args.microbatches * slices_of(args) * kinds
    limits.check("actions", number, f"{num_stages} stages, {args.microbatches} micro-batches")
    if text := limits.announced("actions", number):
        say(text)


def slices_of(args: argparse.Namespace) -> int:
    """Return into how many slices sequences are cut."""
    from simulator.schedules import SCHEDULES

    kind = SCHEDULES.get(args.schedule)
    return args.slices or (2 if kind and kind.sliced else 1)


def check_pairs(args: argparse.Namespace, given: "Schedule | None") -> None:
    """Refuse a pair's time for a schedule without pairs, where it would do nothing."""
    from simulator.schedules import SCHEDULES

    kind = SCHEDULES.get(args.schedule)
    if args.pair_ns is not None and not (given.paired if given else kind and kind.overlapped):
        have = ", ".join(name for name, other in SCHEDULES.items() if other.overlapped)
        raise UsageError(f"{args.schedule} has no overlapped pairs; {have} have, and a CSV with cells as "
                         "(2F5;3B1)OVERLAP_F_B")  # fmt: skip


def remade(
    args: argparse.Namespace, schedule: "Schedule", costs: "Costs", limit: int | None
) -> tuple["Schedule", "Costs"]:
    """Run forwards again, and copy activations to the host and back, where that is asked for."""
    if args.recompute is not None:
        schedule, costs = _recomputed(args, schedule, costs, limit)
    if args.offload is not None:
        schedule = _offloaded(args, schedule, costs)
    return schedule, costs


def _recomputed(
    args: argparse.Namespace, schedule: "Schedule", costs: "Costs", limit: int | None
) -> tuple["Schedule", "Costs"]:
    """Put an R before each backward of the stages that are to run their forwards again; no other stage does."""
    from simulator.transformations import recomputed_ahead, with_recompute

    chosen = _chosen(args, "recompute", schedule)
    silent = [stage for stage in chosen if args.costs and not costs.stages[stage].recompute_ns]
    if silent:
        raise UsageError(f"{args.costs} does not say what running stage {silent[0]} again takes; give it recompute_ns")
    stages = [replace(one, recompute_ns=(one.recompute_ns if args.costs else one.forward_ns) if i in chosen else 0)
              for i, one in enumerate(costs.stages)]  # fmt: skip
    schedule, costs = with_recompute(schedule, chosen), replace(costs, stages=tuple(stages))
    if limit is None or args.p2p == "nccl":  # whose waits are known once orders are lowered
        return schedule, costs
    return recomputed_ahead(schedule, costs, limit, args.p2p), costs


def _offloaded(args: argparse.Namespace, schedule: "Schedule", costs: "Costs") -> "Schedule":
    """Let the activations of stages leave and come back wherever that makes nothing wait."""
    from simulator.transformations import with_offload

    again = {action.stage for order in schedule.orders for action in order if action.kind == "R"}
    chosen = [stage for stage in _chosen(args, "offload", schedule) if args.offload or stage not in again]
    if not chosen:
        raise UsageError("--offload: all stages recompute, which keeps nothing that could leave; name stages for each")
    both = sorted(again.intersection(chosen))
    if both:
        raise UsageError(f"--offload and --recompute both name stage {both[0]}, which keeps nothing that could leave "
                         "where it recomputes; name it in one of the two")  # fmt: skip
    silent = [stage for stage in chosen if args.offload_ns is None and not costs.stages[stage].offload_ns]
    if silent:
        have = f"give stage {silent[0]} of {args.costs} offload_ns" if args.costs else "give --offload-ns"
        raise UsageError(f"--offload: nothing says how long a copy to the host takes; {have}")
    found = with_offload(schedule, costs, chosen, "latency" if args.p2p == "nccl" else args.p2p)
    if found == schedule:
        longest = max(costs.stages[stage].offload_ns for stage in chosen)
        raise UsageError(f"--offload: no backward is far enough behind its forward for copies of {longest} ns to the "
                         "host and as long back; nothing would leave")  # fmt: skip
    return found


def _chosen(args: argparse.Namespace, name: str, schedule: "Schedule") -> list[int]:
    """Return the stages that a flag names, all with a backward where it says so."""
    from simulator.schedules import SCHEDULES

    kind, count, stages = SCHEDULES.get(args.schedule), schedule.graph.num_stages, getattr(args, name)
    if schedule.paired:
        raise UsageError(f"--{name} leaves no backward directly behind the forward of an overlapped pair; take orders, "
                         "or costs, without pairs")  # fmt: skip
    if kind and kind.synthesis and args.memory_limit is not None:
        raise UsageError(f"{args.schedule} plans within --memory-limit without what --{name} frees; leave one of "
                         "them out, or take a schedule of a fixed order")  # fmt: skip
    chosen = stages or [stage for stage in range(count) if schedule.graph.backward[stage]]
    stuck = [stage for stage in chosen if stage >= count or not schedule.graph.backward[stage]]
    if stuck or not chosen:
        raise UsageError(f"--{name}: {f'no stage {stuck[0]}' if stuck else 'no stage'} with a backward is there; "
                         f"stages are 0 to {count - 1}")  # fmt: skip
    return list(chosen)
