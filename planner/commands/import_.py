"""Read what was measured or written down elsewhere into our own files.

    penstock import layers table.csv -o profile.json          a table of layers (CSV)
    penstock import nccl-tests all_reduce.txt -o links.json   nccl-tests' text or -J JSON; several files too
    penstock import topology topo.txt -o cluster.toml         nvidia-smi topo -m, or Slurm's topology
    penstock import torch-csv schedule.csv --profile profile.json -o plan.json
    penstock import megatron-layout 'Ett|(tt|)*2ttL' --stages 4 --batch 64 --profile llama.json -o plan.json
    penstock import kineto rank0.json rank1.json -o profile.json --timeline-output run.json
    penstock import job ds_config.json --trainer deepspeed --world-size 64 --model profile.json -o job.json

torch-csv and megatron-layout make plans of what you run today: torch's compute_only CSV of orders, and Megatron-LM's
pipeline layout (or a file that holds one), with costs from a profile. job does so from what DeepSpeed, torchtitan,
Megatron-LM or Megatron-Bridge is configured by: each key is in the plan, or named with the reason; plan --from job.json
compares it with ours. kineto reads what torch.profiler exported on each rank of a pipeline, or on one of a training
loop, says what F, B and waits took, and simulates the run as it was: --costs-output and --orders-output are its costs
and orders for simulate, where another --schedule says what that would take. Modules are in the profile where the
profiler ran with_stack=True. What each format holds, and what it leaves open, is in docs/guide.md.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import UsageError
from planner.commands import import_kineto
from planner.commands.answer import Answer, say
from planner.commands.checked_output import Output, write_checked
from planner.commands.flags import GIB, MEMORY_GIB, amount, positive
from planner.commands.import_job import add_job_arguments, import_job
from planner.commands.import_kineto import OUTPUTS
from planner.commands.import_plans import FORMATS as PLANS
from planner.commands.import_plans import add_plan_arguments, import_plan

if TYPE_CHECKING:
    from costmodel.model.profile import Profile

FORMATS = ("layers", "nccl-tests", "topology", "kineto", "job", *PLANS)
SEVERAL = ("nccl-tests", "kineto")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("format", choices=FORMATS, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="what to read (several only for nccl-tests and kineto)"
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="file to write")
    parser.add_argument(
        "--microbatch-size",
        type=positive,
        default=1,
        help="layers, kineto: samples of a micro-batch there; plans: of a micro-batch (default %(default)s)",
    )
    parser.add_argument(
        "--memory",
        type=amount,
        metavar="GiB",
        help=f"memory of a device (default: the catalogue's, else {MEMORY_GIB:g})",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="topology, kineto: a catalogue id, which says rates and memory, or any name (default gpu or cpu)",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="kineto: the model's name (default: that of the first file); job: the profile of its model (needed)",
    )
    for name, text in OUTPUTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="F", help=text)
    parser.add_argument(
        "--devices-per-host", type=positive, default=8, help="topology: Slurm's knows none (default %(default)s)"
    )
    add_plan_arguments(parser)
    add_job_arguments(parser)


def run(args: argparse.Namespace) -> Answer:
    """Read, write and say what was read."""
    if len(args.files) > 1 and args.format not in SEVERAL:
        raise UsageError(f"import {args.format}: {len(args.files)} files; one is read at a time")
    if args.format == "kineto":
        return import_kineto.run(args)
    for name in OUTPUTS if args.format == "job" else ("model", *OUTPUTS):
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')} goes with import kineto, not with {args.format}; drop it")
    if args.format == "job":
        return import_job(args)
    if args.trainer or args.world_size:
        raise UsageError(f"--trainer and --world-size go with import job, not with {args.format}; drop them")
    if args.format in PLANS:
        return import_plan(args)
    return _READERS[args.format](args)


def _layers(args: argparse.Namespace) -> Answer:
    from costmodel.importers.layers import read_layers
    from costmodel.model.profile import read_profile, write_profile

    found = read_layers(args.files[0], args.microbatch_size, round((args.memory or MEMORY_GIB) * GIB))
    write_checked([Output(args.output, lambda path: write_profile(path, found), read_profile)])
    return _read(args, found)


def _read(args: argparse.Namespace, found: "Profile") -> Answer:
    body = {
        "output": args.output,
        "operators": len(found.graph.operators),
        "edges": sum(len(tensor.consumers) for tensor in found.graph.tensors),
        "step_ns": list(found.whole.step_ns),
    }
    return Answer(body, [f"{args.output}: {body['operators']} operators, {body['edges']} edges"])


def _nccl_tests(args: argparse.Namespace) -> Answer:
    from costmodel.codec import to_json
    from costmodel.importers.nccl_tests import links_of, read_nccl_runs
    from costmodel.machines.links import read_links, write_links

    runs = read_nccl_runs(args.files)
    links, left_out = links_of(runs), {run.kind: list(run.left_out) for run in runs if run.left_out}
    imported = {"imported": "nccl-tests"}
    write_checked([Output(args.output, lambda path: write_links(path, links, imported), read_links)])
    rows = {name: len(link.table) for name, link in links.classes.items()}
    text = ", ".join(f"{name} at {count} sizes" for name, count in rows.items())
    body = {"output": args.output, **to_json(links), "left_out": left_out}
    others = [f"{kind}: times of {', '.join(names)} are left out" for kind, names in left_out.items()]
    return Answer(body, [f"{args.output}: {links.num_ranks} ranks, {text}", *others])


def _topology(args: argparse.Namespace) -> Answer:
    from costmodel.files import write_text
    from costmodel.importers.topology import read_topology
    from costmodel.machines import catalogue
    from costmodel.machines.cluster import read_cluster

    device = catalogue.find_device(args.device) if args.device else None
    found = read_topology(args.files[0], args.devices_per_host, device)
    memory_gib = args.memory or (device.memory_bytes / GIB if device else MEMORY_GIB)
    name = device.id if device else args.device or "gpu"
    text = found.to_toml(name, memory_gib, device.id if device else "")
    write_checked([Output(args.output, lambda path: write_text(Path(path), text), read_cluster)])
    cluster = read_cluster(args.output)
    for note in found.notes:
        say(f"penstock import: {note}")
    whose = f"of {device.name} in the catalogue" if device else "assumed, for --device names no device of the catalogue"
    say(f"penstock import: topology says nothing of speed: bandwidths and latencies are {whose}; measure them")
    links = [{"name": g.name, "group": g.group, "bandwidth_gbs": g.bandwidth_gbs} for g in cluster.groups]
    body = {"output": args.output, "hosts": found.num_hosts, "devices": cluster.num_devices, "links": links}
    shown = ", ".join(f"{g.name} of {g.group or 'all'}" for g in cluster.groups)
    return Answer(body, [f"{args.output}: {found.num_hosts} hosts, {cluster.num_devices} devices; {shown}"])


_READERS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "layers": _layers,
    "nccl-tests": _nccl_tests,
    "topology": _topology,
}
