"""``penstock profile``: flags, where the journal lies, and the answer."""

import argparse
import math
import sys
import time
from pathlib import Path

from costmodel.errors import UsageError
from costmodel.profile import write_profile

BUSY = 1.15
"""Wall over own time of a step from which the user is told that the machine was not quiet."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``penstock profile``."""
    parser.add_argument("model", metavar="MODEL", help="module:function, or zoo:NAME[:small]")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="profile to write (.json or .json.gz)")
    parser.add_argument(
        "--microbatch-sizes", default="1,2,4", metavar="LIST", help="samples in a micro-batch (default %(default)s)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default %(default)s")
    parser.add_argument("--dtype", default="float32", help="of parameters and inputs (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="timed steps a size (default %(default)s)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="insist on continuing the journal beside the output file; by default it is continued if it agrees",
    )
    parser.add_argument(
        "--companions",
        type=int,
        metavar="K",
        help="processes that train the same model on the other cores meanwhile, as the other ranks of a CPU host will "
        "(default: one a free core, 3 at most)",
    )
    parser.add_argument("--no-links", action="store_true", help="measure no links between two local ranks")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")


def run(args: argparse.Namespace) -> dict[str, object]:
    """Profile the model, write the file and return the answer."""
    from costmodel.profiling.companions import default_companions
    from costmodel.profiling.options import Options
    from costmodel.profiling.run import profile

    start = time.perf_counter()
    options = Options(
        model=args.model,
        microbatch_sizes=_sizes(args.microbatch_sizes),
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        repeats=args.repeats,
        links=not args.no_links,
        seed=args.seed,
        companions=default_companions(args.threads) if args.companions is None else args.companions,
    )
    journal = Path(f"{args.output}.journal")
    found = profile(options, journal, args.resume, lambda text: print(f"penstock profile: {text}", file=sys.stderr))
    write_profile(args.output, found)
    journal.unlink(missing_ok=True)
    unscaled = found.extra["unscaled"]
    assert isinstance(unscaled, dict)  # noqa: S101 - made by the profiler
    busy = max(wall / step for wall, step in zip(unscaled["wall_ns"], unscaled["step_ns"], strict=True))
    if busy > BUSY:
        print(
            f"penstock profile: other work took time here: a step lasted {busy:.1f} times its own CPU time; "
            "the profile holds its own time",
            file=sys.stderr,
        )
    return {
        "output": args.output,
        "operators": len(found.graph.operators),
        "edges": sum(len(tensor.consumers) for tensor in found.graph.tensors),
        "parameters": sum(math.prod(parameter.shape) for parameter in found.graph.parameters),
        "seconds": round(time.perf_counter() - start, 3),
        "device": found.device.name,
        "coverage": min(unscaled["coverage"]),
        "step_ns": list(found.whole.step_ns),
        "fingerprint": found.graph.fingerprint,
        "plan_only": found.extra.get("plan_only", ""),
    }


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--microbatch-sizes {text!r}: whole numbers separated by commas are needed, e.g. 1,2,4"
        ) from None
