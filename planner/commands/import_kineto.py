"""``penstock import kineto``: traces of a pipeline that ran elsewhere, one file a rank, simulated as it ran.

Leaves out the reading (`costmodel.importers.kineto`) and what is made of it (`simulator.traced_run`).
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import InvalidInput
from planner.commands.answer import Answer, say
from planner.commands.checked_output import Output, write_checked
from planner.commands.flags import GIB, MEMORY_GIB
from planner.report.summary.text import Table, duration

if TYPE_CHECKING:
    from costmodel.importers.kineto import RankTrace
    from costmodel.importers.kineto_actions import TracedAction
    from costmodel.machines.cluster_parts import DeviceType
    from costmodel.model.profile import Profile
    from simulator.traced_run import TracedRun

OUTPUTS = {
    "timeline_output": "kineto: the measured step as a timeline, with its waits",
    "costs_output": "kineto: what stages and messages cost, for simulate --costs",
    "orders_output": "kineto: the orders of the run (CSV), for simulate --schedule",
    "cluster_output": "kineto: the ranks and their link as a cluster file; aceso: cluster and links as two files",
}
UNKNOWN = "traces hold no bytes: memory and the size of messages are not known"
PLAN_ONLY = "the profile is of a trace: there is no model to run"


def run(args: argparse.Namespace) -> Answer:
    """Read, simulate what ran, write and say how near the two are."""
    from costmodel.importers.kineto_actions import traced_steps
    from simulator.engine import simulate
    from simulator.traced_run import TracedRun

    traces = _traces(args.files)
    rows = [traced_steps(trace, place, alone=len(traces) == 1) for place, trace in enumerate(traces)]
    counts = {len(steps) for steps in rows}
    if len(counts) > 1:
        told = ", ".join(f"{len(steps)} in {trace.path}" for steps, trace in zip(rows, traces, strict=True))
        raise InvalidInput(f"the ranks' traces hold unlike numbers of steps ({told}); profile the same steps on all")
    found = TracedRun(tuple(zip(*rows, strict=True)))
    simulated_ns = simulate(found.schedule, found.costs).step_time_ns
    device = _device(args, traces)
    profile = _profile(args, traces, [[a for step in steps for a in step] for steps in rows], found, device)
    written = _write(args, profile, found, device)
    body = {
        "output": args.output,
        "operators": len(profile.graph.operators),
        "edges": sum(len(tensor.consumers) for tensor in profile.graph.tensors),
        **written,
        "ranks": len(traces),
        "steps": len(found.steps),
        "microbatches": found.schedule.num_microbatches,
        "step_time_ns": found.step_time_ns,
        "simulated_step_time_ns": simulated_ns,
        "error_percent": 100 * (simulated_ns / found.step_time_ns - 1),
        "stages": _stages(found),
        "edges_p2p_ns": [{"from": a, "to": b, "p2p_ns": ns} for (a, b), ns in found.p2p_ns.items()],
        "waits_ns": list(found.waits_ns),
    }
    return Answer(body, _text(args, body, found, profile))


def _traces(paths: Sequence[str]) -> list["RankTrace"]:
    """Read the traces, in order of rank."""
    from costmodel.importers.kineto import read_trace

    traces = sorted((read_trace(path) for path in paths), key=lambda trace: trace.rank)
    for first, second in pairwise(traces):
        if first.rank == second.rank:
            raise InvalidInput(f"{first.path} and {second.path} are both of rank {first.rank}; give one trace a rank")
    if len(traces) < traces[0].world_size:
        ranks = ", ".join(str(trace.rank) for trace in traces)
        say(
            f"penstock import: ranks {ranks} of {traces[0].world_size} are taken as a whole pipeline: what they waited "
            "for others counts as their own work"
        )
    if len({trace.host for trace in traces}) > 1:
        say("penstock import: traces of several hosts: messages are as exact as their clocks")
    return traces


def _device(args: argparse.Namespace, traces: Sequence["RankTrace"]) -> "DeviceType":
    """Return the device that a person named, or what the trace shows."""
    from costmodel.importers.kineto import KERNELS
    from costmodel.machines import catalogue
    from costmodel.machines.cluster_parts import DeviceType

    kind = "cuda" if any(event.category in KERNELS for trace in traces for event in trace.events) else "cpu"
    known = catalogue.find_device(args.device) if args.device else None
    if known:
        return DeviceType(known.id, round(args.memory * GIB) if args.memory else known.memory_bytes, "cuda", known.id)
    name = args.device or ("gpu" if kind == "cuda" else "cpu")
    return DeviceType(name, round((args.memory or MEMORY_GIB) * GIB), kind)


def _profile(
    args: argparse.Namespace,
    traces: Sequence["RankTrace"],
    actions: Sequence[Sequence["TracedAction"]],
    found: "TracedRun",
    device: "DeviceType",
) -> "Profile":
    from costmodel.importers.kineto_modules import StageTimes, stage_rows
    from costmodel.importers.layers import profile_of
    from costmodel.machines.links import LinkClass, Links, SizeRange
    from costmodel.model.origin import Origin
    from costmodel.model.profile import Device
    from costmodel.stages.costs import at

    stages = []
    for cost in found.costs.stages:
        inputs, weights = at(cost.backward_input_ns, 0), at(cost.backward_weight_ns, 0)
        stages.append(StageTimes(at(cost.forward_ns, 0), inputs + weights, weights))
    of = Device(device.type, device.name, device.memory_bytes, device.catalogue)
    rows = stage_rows(traces, actions, stages)
    profile = profile_of(rows, args.model or Path(args.files[0]).name, "kineto", of, args.microbatch_size)
    any_size = SizeRange(0, _message_ns(found), 1e9)  # traces tell no sizes: a message takes what it took
    links = Links("traced", device.type, len(traces), {"p2p": LinkClass((any_size,))})
    return replace(
        profile, links=links if len(traces) > 1 else None, origin=Origin(plan_only=PLAN_ONLY, estimated=(UNKNOWN,))
    )


def _message_ns(found: "TracedRun") -> int:
    """Return what a message between two ranks takes, the mean of the edges."""
    ranks = found.costs.ranks
    between = [ns for (a, b), ns in found.p2p_ns.items() if ranks[a] != ranks[b]]
    return round(sum(between) / max(1, len(between)))


def _write(args: argparse.Namespace, profile: "Profile", found: "TracedRun", device: "DeviceType") -> dict[str, str]:
    """Write the profile and what else was asked for, all of it or nothing; return the other files by what they are."""
    from costmodel.files import write_text
    from costmodel.machines.cluster import read_cluster
    from costmodel.model.profile import read_profile, write_profile
    from costmodel.stages.costs_file import read_costs, write_costs
    from simulator.timeline import read_timeline, write_timeline
    from simulator.torch_csv import read_torch_csv

    count, imported = found.schedule.num_microbatches, {"imported": "kineto"}
    asked: dict[str, tuple[Callable[[str], None], Callable[[str], object]]] = {
        "timeline_output": (lambda path: write_timeline(path, found.timeline, imported), read_timeline),
        "costs_output": (lambda path: write_costs(path, found.costs), lambda path: read_costs(path, count)),
        "orders_output": (lambda path: write_text(path, found.orders_csv), read_torch_csv),
        "cluster_output": (lambda path: write_text(path, _cluster(found, device)), read_cluster),
    }
    paths = {name: path for name in OUTPUTS if (path := getattr(args, name))}
    first = Output(args.output, lambda path: write_profile(path, profile), read_profile)
    write_checked([first, *(Output(path, *asked[name]) for name, path in paths.items())])
    return {name.removesuffix("_output"): path for name, path in paths.items()}


def _cluster(found: "TracedRun", device: "DeviceType") -> str:
    """Return a cluster file of as many devices; its link has the latency of the trace's messages."""
    import json

    said = f"catalogue = {json.dumps(device.catalogue)}" if device.catalogue else f"type = {json.dumps(device.type)}"
    return (
        'format = "penstock-cluster"\nversion = 1\n\n'
        f"[[device]]\nname = {json.dumps(device.name)}\n{said}\nmemory_gib = {device.memory_bytes / GIB!r}\n\n"
        f"[[host]]\ndevice = {json.dumps(device.name)}\ndevices = {found.costs.num_ranks}\n\n"
        "# the latency is that of the trace's messages; the bandwidth is assumed, for a trace tells no sizes\n"
        f'[[link]]\nname = "traced"\ngroup = 0\nbandwidth_gbs = 10.0\nlatency_us = {_message_ns(found) / 1000!r}\n'
    )


def _stages(found: "TracedRun") -> list[dict[str, object]]:
    """Return what each stage took, ns of one action, with what its rank needs before it."""
    rows: list[dict[str, object]] = []
    for stage, ranks in enumerate(found.costs.ranks):
        kinds = {kind: ns for (of, kind), ns in sorted(found.action_ns.items()) if of == stage}
        rows.append({"stage": stage, "rank": ranks[0], **{f"{kind}_ns": ns for kind, ns in kinds.items()}})
    return rows


def _text(
    args: argparse.Namespace, body: dict[str, object], found: "TracedRun", profile: "Profile"
) -> list[str | Table]:
    kinds = sorted({kind for _, kind in found.action_ns}, key="FBIW".index)
    rows = [
        (str(stage), str(ranks[0]), *(duration(found.action_ns.get((stage, kind))) for kind in kinds))
        for stage, ranks in enumerate(found.costs.ranks)
    ]
    waits = ", ".join(f"rank {rank} {duration(ns)}" for rank, ns in enumerate(found.waits_ns))
    lines: list[str | Table] = [
        f"{args.output}: {len(profile.graph.operators)} operators of {len(rows)} stages on {found.costs.num_ranks} "
        f"ranks, {found.schedule.num_microbatches} micro-batches, {len(found.steps)} steps",
        Table(("stage", "rank", *kinds), rows),
        f"waits for messages: {waits}",
        f"step {duration(found.step_time_ns)}, simulated {body['error_percent']:+.1f} %",
    ]
    if args.costs_output and args.orders_output:
        count = found.schedule.num_microbatches
        lines.append(
            f"penstock simulate --schedule {args.orders_output} --costs {args.costs_output} --microbatches {count}  "
            "repeats it; another --schedule is what that would take"
        )
    return lines
