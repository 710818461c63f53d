"""Cut another planner's instance under that planner's own objective, with a proved bound, or read it as a profile.

    python -m benchmarks.peer_problems bert32.json --format piper --devices 8
    python -m benchmarks.peer_problems graph.txt --format pipedream --devices 4 --bandwidth 1
    python -m benchmarks.peer_problems bert32.json --format piper -o profile.json
    python -m benchmarks.peer_problems aceso.tar.gz --format aceso --device a10g --model 13B -o profile.json

Formats: dnn-partitioning (contiguous devices, the largest load in ms), piper (time for each sample in s, data and
tensor parallelism and recompute), pipedream (the slowest stage in s, stages replicated), aceso (a profile alone, and
with --cluster-output the hosts and links of its runs).
"""

import argparse
import sys
import time

from benchmarks.peer_problems.answer import INFEASIBLE, PeerAnswer
from costmodel import limits
from costmodel.errors import LimitReached, NoPlanFits, UsageError
from costmodel.model.profile import Profile, write_profile
from planner.commands.answer import INTERRUPTED, Answer, say
from planner.commands.flags import GIB, amount, limit, positive
from planner.interrupts import raised

FORMATS = ("dnn-partitioning", "piper", "pipedream", "aceso")
GB = 1e9
LINK_BANDWIDTH, DEVICE_MEMORY = 10.0, 80.0
"""GB/s of the link on which dnn-partitioning's tensors take what the file says, and GiB of a device, in a profile."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("file", metavar="FILE", help="instance to cut")
    parser.add_argument("--format", required=True, choices=FORMATS)
    parser.add_argument("--devices", type=positive, metavar="K", help="to cut it for")
    parser.add_argument("-o", "--output", metavar="PROFILE", help="write it as a profile instead")
    parser.add_argument("--cluster-output", metavar="F", help="aceso: the cluster of its runs, as a file")
    parser.add_argument("--device", metavar="NAME", help="aceso: whose tables to read")
    parser.add_argument("--model", metavar="NAME", help="aceso: whose operators to read, 13B say")
    parser.add_argument("--no-cpu", action="store_true", help="accelerators alone, which is the default")
    parser.add_argument("--memory", type=amount, metavar="GiB", help="of each device (default: the file's)")
    parser.add_argument(
        "--bandwidth", type=amount, metavar="GB/s", help="10^9 bytes a second (default: the file's; pipedream: 1)"
    )
    parser.add_argument("--microbatches", type=positive, metavar="N", help="piper: of a batch (default: the file's)")
    parser.add_argument("--no-data-parallel", action="store_true", help="stages without replicas")
    parser.add_argument("--no-tensor-parallel", action="store_true", help="piper: every operator on one device")
    parser.add_argument("--time-limit", type=limit, default=120.0, metavar="S", help="(default %(default)s)")


def run(args: argparse.Namespace) -> Answer:
    """Solve the instance and say how good the answer is, or write it as a profile."""
    if args.output:
        return _profile(args)
    if args.format == "aceso" or not args.devices:
        cut = "" if args.format == "aceso" else ", or --devices K to cut it"
        raise UsageError(f"--format {args.format}: give -o PROFILE to write it as a profile{cut}")
    _check(args)
    started = time.perf_counter()
    with raised():
        found = {"dnn-partitioning": _dnn_partitioning, "piper": _piper, "pipedream": _pipedream}[args.format](args)
    seconds = time.perf_counter() - started
    if found.objective is None:
        if found.status == INFEASIBLE:
            raise NoPlanFits(f"{args.file}: {found.why}")
        raise LimitReached(f"{args.file}: {found.why}; a larger --time-limit may help")
    unit = "ms" if args.format == "dnn-partitioning" else "s"
    body: dict[str, object] = {
        "objective": found.objective,
        "lower_bound": found.lower_bound,
        "status": found.status,
        "unit": unit,
        "seconds": round(seconds, 3),
        "stages": list(found.stages),
    }
    lines = [f"{found.objective:.9g} {unit}, bound {found.lower_bound:.9g} ({found.status}), {seconds:.2f} s"]
    for number, stage in enumerate(found.stages):
        nodes = stage["nodes"]
        rest = ", ".join(f"{key} {_short(value)}" for key, value in stage.items() if key not in ("nodes", "variants"))
        lines.append(f"  stage {number}: {len(nodes) if isinstance(nodes, list) else 0} nodes, {rest}")
    return Answer(body, lines, INTERRUPTED if found.interrupted else 0)


def _profile(args: argparse.Namespace) -> Answer:
    """Write the instance as a profile."""
    from benchmarks.peer_problems.readers import profiles

    path, memory = args.file, args.memory or DEVICE_MEMORY
    lines, body = [], {"output": args.output}
    if args.format == "aceso":
        found = _aceso(args)
        if args.cluster_output:
            lines.append(f"{args.cluster_output}: the hosts and links of the archive's runs")
            body["cluster_output"] = args.cluster_output
    elif args.format == "piper":
        found = profiles.piper_profile(path)
    elif args.format == "pipedream":
        found = profiles.pipedream_profile(path, round(memory * GIB))
    else:
        found = profiles.dnn_partitioning_profile(path, (args.bandwidth or LINK_BANDWIDTH) * GB)
    write_profile(args.output, found)
    operators, edges = len(found.graph.operators), sum(len(tensor.consumers) for tensor in found.graph.tensors)
    lines.insert(0, f"{args.output}: {operators} operators, {edges} edges")
    return Answer({**body, "operators": operators, "edges": edges, "step_ns": list(found.whole.step_ns)}, lines)


def _aceso(args: argparse.Namespace) -> Profile:
    from benchmarks.peer_problems.aceso.archive import read_archive
    from benchmarks.peer_problems.aceso.cluster import aceso_cluster, write_aceso_cluster
    from benchmarks.peer_problems.aceso.profile import aceso_profile, odd_rows

    for flag, value in (("--device", args.device), ("--model", args.model)):
        if not value:
            raise UsageError(f"--format aceso: {flag} is missing; the archive holds several, name one")
    archive = read_archive(args.file, args.device, args.model)
    found = aceso_profile(archive)
    for text in (*odd_rows(archive), *found.origin.estimated):
        say(text)
    if args.cluster_output:
        write_aceso_cluster(args.cluster_output, aceso_cluster(archive))
    return found


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that the format knows nothing of."""
    limits.check("devices", args.devices, "--devices")
    known = {
        "dnn-partitioning": ("memory",),
        "piper": ("memory", "bandwidth", "microbatches"),
        "pipedream": ("bandwidth",),
    }
    for name in known["piper"]:
        if getattr(args, name) and name not in known[args.format]:
            allowed = ", ".join(f"--{each}" for each in known[args.format])
            raise UsageError(f"--{name} means nothing for {args.format}, which takes {allowed}")


def _dnn_partitioning(args: argparse.Namespace) -> PeerAnswer:
    from benchmarks.peer_problems.contiguous_search import solve_contiguous
    from benchmarks.peer_problems.readers.dnn_partitioning import read_dnn_partitioning

    instance = read_dnn_partitioning(args.file)
    memory = args.memory * GIB if args.memory else instance.memory_bytes
    return solve_contiguous(instance, args.devices, memory, args.time_limit, _report)


def _report(load: float) -> None:
    sys.stderr.write(f"best so far {load:.9g} ms\n")
    sys.stderr.flush()


def _piper(args: argparse.Namespace) -> PeerAnswer:
    from benchmarks.peer_problems.piper import PiperSetting, solve_piper
    from benchmarks.peer_problems.readers.piper import read_piper

    instance = read_piper(args.file)
    setting = PiperSetting(
        args.devices,
        args.memory * GIB if args.memory else instance.memory_bytes,
        args.bandwidth * GB if args.bandwidth else instance.bandwidth,
        args.microbatches or instance.num_microbatches,
        not args.no_data_parallel,
        not args.no_tensor_parallel,
    )
    return solve_piper(instance, setting, args.time_limit)


def _pipedream(args: argparse.Namespace) -> PeerAnswer:
    from benchmarks.peer_problems.pipedream import solve_pipedream
    from benchmarks.peer_problems.readers.pipedream import read_pipedream

    instance = read_pipedream(args.file)
    bandwidth = args.bandwidth * GB if args.bandwidth else GB
    replicate = not args.no_data_parallel
    return solve_pipedream(instance, args.devices, bandwidth, replicate=replicate, seconds=args.time_limit)
