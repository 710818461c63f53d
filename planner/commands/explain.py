"""Say why a plan takes as long as it does: critical path, idle time by cause, stages, cuts, memory, rivals.

    penstock explain plan.json
    penstock explain plan.json --profile profile.json --time-limit 5

The changes at the end are each simulated with all else as it is; they say what would be gained, not how. A cut's
transfer is exposed as far as it lies on the critical path. With the profile that the plan was made from, every boundary
is moved by one operator either way, the cut is put under other schedules, and the question is planned anew with one
thing changed: replicas, one more GiB, a link twice as fast, one more micro-batch, one more device.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.commands.answer import INTERRUPTED, Answer, say, say_size
from planner.commands.flags import limit
from planner.report.summary.text import Table, duration, for_people, percent, size

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.report.why.explanation import Explanation
    from planner.report.why.reasons import Reasons
    from planner.report.why.what_if import WhatIf

NUM_CAUSES, NUM_RIVALS, NUM_STAGES, NUM_CUTS = 5, 3, 64, 12
"""How much people are shown; the JSON has all."""
LEFT_OUT = "what moving a boundary costs, other schedules and replicas, and changes planned anew need operators' costs"
USUAL = ("parameters", "gradients", "optimizer", "master_weights")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plan", metavar="PLAN", help="plan file")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="FILE",
        help="profile that the plan was made from; again for each type of device",
    )
    parser.add_argument(
        "--calibration", metavar="FILE", help="constants for what is planned anew (default: the plan's own)"
    )
    parser.add_argument("--pin", metavar="FILE", help="pin file that the plan was made with")
    parser.add_argument(
        "--time-limit", type=limit, metavar="S", help="of each plan made anew (default: the plan's own)"
    )


def run(args: argparse.Namespace) -> Answer:
    """Explain the plan."""
    from planner.plan import read_plan
    from planner.plan.replay import check_recorded
    from planner.plan.rung import rung
    from planner.report.why.explanation import Explanation
    from planner.report.why.what_if import what_ifs

    plan = read_plan(args.plan)
    say_size(plan)
    found = Explanation(plan)
    check_recorded(args.plan, plan, found.timeline)
    changes = what_ifs(plan)
    step_ns = found.step_time_ns
    body = {
        "plan": args.plan,
        "strategy": rung(plan),
        "estimated": list(plan.assumptions.estimated),
        **found.to_json(),
        "changes": [
            {"change": c.change, "step_time_ns": c.step_time_ns, "gain": _gain(step_ns, c.step_time_ns)}
            for c in changes
        ],
    }
    lines: list[str | Table] = [*_head(args.plan, rung(plan), found), *_path(found), *_idle(found), *_binding(found)]
    lines += [*_stages(found), *_memory(found), *_cuts(found), *_changes(step_ns, changes)]
    if not args.profile:
        return Answer({**body, "left_out": LEFT_OUT}, [*lines, f"without --profile: {LEFT_OUT}"])
    why = _reasons(args, plan)
    return Answer({**body, **why.to_json()}, [*lines, *why.text()], INTERRUPTED if why.interrupted else 0)


def _reasons(args: argparse.Namespace, plan: "Plan") -> "Reasons":
    from costmodel.calibration import read_calibration
    from costmodel.model.profile import read_profile
    from planner.front import make_plan
    from planner.question.pins import read_pins
    from planner.question.reask import asked_again
    from planner.report.why.reasons import reasons

    profiles = list(map(read_profile, args.profile))
    calibration = read_calibration(args.calibration) if args.calibration else None
    problem = asked_again(plan, profiles, read_pins(args.pin) if args.pin else None, calibration)
    if args.time_limit is not None:
        problem = replace(problem, effort=replace(problem.effort, time_limit_s=args.time_limit))
    return reasons(plan, problem, lambda changed: make_plan(changed).plan, say)


def _gain(before_ns: int, after_ns: int) -> float:
    return 1 - after_ns / before_ns if before_ns else 0.0


def _head(path: str, strategy: str, found: "Explanation") -> Iterator[str]:
    plan, search = found.plan, found.plan.search
    batch = plan.batch
    yield (
        f"{path}: {strategy}, {len(plan.stages)} stages on {len(plan.orders)} ranks, {plan.schedule}, "
        f"{batch.num_microbatches} micro-batches of {batch.microbatch_size}"
        + (", times estimated" if plan.assumptions.estimated else "")
    )
    yield (
        f"step {duration(found.step_time_ns)}, {percent(search.gap)} above the lower bound "
        f"{duration(search.lower_bound_ns)} ({for_people(search.scope)})"
    )
    yield f"chosen: {plan.extra.get('choice') or 'not recorded'} ({search.status})"
    rivals = [f"{name} {_slower(found.step_time_ns, ns)}" for name, ns in found.next_best[:NUM_RIVALS]]
    yield f"next best: {', '.join(rivals) or 'nothing else was simulated'}"


def _slower(before_ns: int, after_ns: int) -> str:
    return f"{duration(after_ns)} ({after_ns / max(1, before_ns) - 1:+.1%})"


def _path(found: "Explanation") -> Iterator[str]:
    """Sum the critical path by kind: what ranks do, transfers, waits."""
    sums: dict[str, int] = {}
    for (what, _, _, kind), (time_ns, _) in found.path.items():
        name = kind if what == "action" else f"{what}s"
        sums[name] = sums.get(name, 0) + time_ns
    ordered = sorted(sums.items(), key=lambda row: -row[1])
    parts = [f"{name} {percent(ns / max(1, found.step_time_ns))}" for name, ns in ordered]
    yield f"critical path: {', '.join(parts)}"


def _idle(found: "Explanation") -> Iterator[str]:
    whole = max(1, found.step_time_ns * len(found.plan.orders))
    shown = list(found.idle.items())
    parts = [f"{cause} {percent(ns / whole)}" for cause, ns in shown[:NUM_CAUSES]]
    rest = sum(ns for _, ns in shown[NUM_CAUSES:])
    parts += [f"{len(shown) - NUM_CAUSES} more causes {percent(rest / whole)}"] if len(shown) > NUM_CAUSES else []
    yield f"idle {percent(found.timeline.bubble_ratio)} of all ranks' time: {', '.join(parts) or 'nothing'}"


def _binding(found: "Explanation") -> Iterator[str]:
    binding = found.binding
    yield f"what binds: {binding.text}"


def _stages(found: "Explanation") -> Iterator[str]:
    from costmodel.stages.costs import mean
    from planner.report.summary.plan_lines import degrees, ranks_said

    rows: list[tuple[str, ...]] = [("stage", "F ms", "I ms", "W ms", "R ms", "on path", "ranks", "config", "what")]
    for index, stage in enumerate(found.plan.stages[:NUM_STAGES]):
        cost = stage.cost
        times = (cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns, cost.recompute_ns)
        rows.append(
            (
                str(index),
                *(f"{mean(time) / 1e6:.3f}" for time in times),
                percent(found.on_path_ns(index) / max(1, found.step_time_ns)),
                ranks_said(stage.ranks),
                degrees(stage.config) or "-",
                f"{stage.name or _ends(stage.operators)} ({len(stage.operators)})",
            )
        )
    return _aligned(rows)


def _ends(operators: Sequence[str]) -> str:
    """Write the first and last operator, for plans whose stages have no names."""
    return f"{_short(operators[0])} .. {_short(operators[-1])}"


def _short(name: str) -> str:
    return name if len(name) <= 32 else f"...{name[-29:]}"


def _memory(found: "Explanation") -> Iterator[str]:
    from costmodel.stages.costs import largest

    rows: list[tuple[str, ...]] = [("MiB", *USUAL, "other", "activations", "peak", "at most")]
    for index, stage in enumerate(found.plan.stages[:NUM_STAGES]):
        terms = dict(stage.cost.memory_terms)
        other = stage.cost.static_bytes - sum(terms.get(name, 0) for name in USUAL)
        block = found.plan.blocks.index(stage.blocks[0])
        sizes = [*(terms.get(name, 0) for name in USUAL), other]
        rows.append(
            (
                str(index),
                *(_mib(size) for size in sizes),
                f"{found.in_flight[index]} x {_mib(largest(stage.cost.activation_bytes))}",
                _mib(found.timeline.peak_memory_bytes[block]),
                _mib(found.plan.prediction.peak_memory_upper_bytes[stage.ranks[0]]),
            )
        )
    return _aligned(rows)


def _mib(size_bytes: int) -> str:
    return size(size_bytes).removesuffix(" MiB")


def _cuts(found: "Explanation") -> Iterator[str]:
    edges = sorted(found.plan.edges, key=lambda e: (-found.exposed_ns(e), e.source, e.target))
    if not edges:
        return iter(())
    rows = [("cut", "MiB", "transfer ms", "of the path", "tensors")]
    for edge in edges[:NUM_CUTS]:
        exposed = found.exposed_ns(edge)
        more = f" and {len(edge.tensors) - 1} more" if len(edge.tensors) > 1 else ""
        rows.append(
            (
                f"{edge.source}>{edge.target}",
                _mib(edge.size_bytes),
                f"{edge.p2p_ns / 1e6:.3f}",
                duration(exposed) if exposed else "hidden",
                _short(edge.tensors[0]) + more,
            )
        )
    lines = list(_aligned(rows))
    lines += [f"{len(edges) - NUM_CUTS} more cuts: see --json"] if len(edges) > NUM_CUTS else []
    return iter(lines)


def _changes(before_ns: int, changes: Sequence["WhatIf"]) -> Iterator[str]:
    yield "what single changes would make of the step time, simulated:"
    for each in changes:
        yield f"  {duration(each.step_time_ns)} ({each.step_time_ns / max(1, before_ns) - 1:+.2%})  {each.change}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write rows as columns, the last one free."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[-1]])
