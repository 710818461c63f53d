"""Cut another planner's instance under that planner's own objective, with a proved bound.

    penstock partition bert32.json --format piper --devices 8
    penstock partition graph.txt --format pipedream --devices 4 --bandwidth 1

Formats: dnn-partitioning (contiguous devices, the largest load in ms), piper (time for each sample in s, data and
tensor parallelism and recompute), pipedream (the slowest stage in s, stages replicated).
"""

import argparse
import sys
import time

from costmodel import limits
from costmodel.errors import LimitReached, NoPlanFits, UsageError
from planner.commands.answer import INTERRUPTED, Answer
from planner.commands.flags import GIB, amount, limit, positive
from planner.search.interrupts import raised
from planner.search.published.peers.answer import INFEASIBLE, PeerAnswer

FORMATS = ("dnn-partitioning", "piper", "pipedream")
GB = 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("file", metavar="FILE", help="instance to cut")
    parser.add_argument("--format", required=True, choices=FORMATS)
    parser.add_argument("--devices", required=True, type=positive, metavar="K")
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
    """Solve the instance and say how good the answer is."""
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
    from costmodel.importers.dnn_partitioning import read_dnn_partitioning
    from planner.search.published.peers.contiguous_search import solve_contiguous

    instance = read_dnn_partitioning(args.file)
    memory = args.memory * GIB if args.memory else instance.memory_bytes
    return solve_contiguous(instance, args.devices, memory, args.time_limit, _report)


def _report(load: float) -> None:
    sys.stderr.write(f"best so far {load:.9g} ms\n")
    sys.stderr.flush()


def _piper(args: argparse.Namespace) -> PeerAnswer:
    from costmodel.importers.piper import read_piper
    from planner.search.published.peers.piper import PiperSetting, solve_piper

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
    from costmodel.importers.pipedream import read_pipedream
    from planner.search.published.peers.pipedream import solve_pipedream

    instance = read_pipedream(args.file)
    bandwidth = args.bandwidth * GB if args.bandwidth else GB
    replicate = not args.no_data_parallel
    return solve_pipedream(instance, args.devices, bandwidth, replicate=replicate, seconds=args.time_limit)
