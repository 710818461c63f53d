"""``penstock profile``: flags, where the journal lies, and the answer."""

import argparse
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import UsageError
from costmodel.model.profile import Profile, write_profile
from costmodel.printing import printable

if TYPE_CHECKING:  # torch is imported once the flags are known to be right
    from costmodel.profiling.options import Options

MOST_GIB = 10**9
"""Bytes of more are beyond 64 bits."""

BUSY = 1.15
"""Wall over own time of a step from which the user is told that the machine was not quiet."""

COVERED = 0.9
"""Share of a step that operators account for below which the user is told that the profile is weak."""

OVER_COVERED = 1.1
"""The same share from which the user is told that operators were measured too long."""

IDLE = 0.85
"""Kernels' share of a GPU's step below which the user is told that its host is what takes the time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``penstock profile``."""
    parser.add_argument("model", metavar="MODEL", help="module:function, zoo:NAME[:small], or a config.json")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="profile to write (.json or .json.gz)")
    parser.add_argument(
        "--microbatch-sizes", default="1,2,4", metavar="LIST", help="samples in a micro-batch (default %(default)s)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default %(default)s")
    parser.add_argument("--dtype", default="", help="of parameters and inputs (default: those the model is built in)")
    parser.add_argument(
        "--autocast",
        nargs="?",
        const="bfloat16",
        default="",
        metavar="DTYPE",
        help="train under autocast to bfloat16 (default with the flag) or float16",
    )
    parser.add_argument(
        "--memory-limit",
        type=float,
        default=0.0,
        metavar="GiB",
        help="a model whose training needs more is captured on meta and measured block by block",
    )
    parser.add_argument(
        "--reuse", default="", metavar="OLD", help="profile to take operators of equal kind, shapes and dtype from"
    )
    parser.add_argument(
        "--tensor", default="", metavar="LIST", help="measure linear layers and attention at these shards too, e.g. 2,4"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="timed steps a size (default %(default)s)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="insist on continuing the journal next to the output file; by default it is continued if it agrees",
    )
    parser.add_argument(
        "--companions",
        type=int,
        metavar="K",
        help="processes that train the same model on the other cores meanwhile, as the other ranks of a CPU host will "
        "(default: one a free core, 3 at most)",
    )
    parser.add_argument("--no-links", action="store_true", help="measure no links between two local ranks")
    parser.add_argument(
        "--dry-run", action="store_true", help="run nothing: graph, operations and bytes on the meta device, no times"
    )
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")


def run(args: argparse.Namespace) -> dict[str, object]:
    """Profile the model, write the file and return the answer."""
    from costmodel.profiling.load_generators import num_default_load_generators
    from costmodel.profiling.options import Options

    start = time.perf_counter()
    if Path(args.output).is_dir():
        raise UsageError(f"-o {args.output}: that is a folder; name a file in it")
    if not 0 <= args.memory_limit <= MOST_GIB:
        raise UsageError(
            f"--memory-limit {args.memory_limit:g}: GiB above 0 and up to {MOST_GIB} are needed, or 0 for no limit"
        )
    options = Options(
        model=args.model,
        microbatch_sizes=_sizes("--microbatch-sizes", args.microbatch_sizes),
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        repeats=args.repeats,
        links=not args.no_links,
        seed=args.seed,
        companions=num_default_load_generators(max(1, args.threads)) if args.companions is None else args.companions,
        dry_run=args.dry_run,
        autocast=args.autocast,
        memory_limit_bytes=round(args.memory_limit * 2**30),
        reuse=args.reuse,
        tensor=_sizes("--tensor", args.tensor) if args.tensor else (),
    )
    found = _dry(options) if args.dry_run else _measured(options, Path(f"{args.output}.journal"), args.resume)
    write_profile(args.output, found)
    Path(f"{args.output}.journal").unlink(missing_ok=True)
    _tell_if_busy(found)
    _tell_if_weak(found)
    return {"output": args.output, **_answer(found), "seconds": round(time.perf_counter() - start, 3)}


def _say(text: str) -> None:
    print(f"penstock profile: {printable(text)}", file=sys.stderr)


def _dry(options: "Options") -> Profile:
    from costmodel.profiling.dry import dry_profile

    return dry_profile(options, _say)


def _measured(options: "Options", journal: Path, resume: bool) -> Profile:
    from costmodel.profiling.run import profile

    return profile(options, journal, resume, _say)


def _tell_if_busy(found: Profile) -> None:
    """Say when other work took a CPU's time, or when a GPU waited for its host."""
    unscaled = found.extra.get("unscaled")
    if not isinstance(unscaled, dict):
        return
    if found.device.type == "cpu":
        busy = max(wall / step for wall, step in zip(unscaled["wall_ns"], unscaled["step_ns"], strict=True))
        if busy > BUSY:
            _say(f"other work took time here: a step lasted {busy:.1f} times its own CPU time, which the profile holds")
    elif unscaled.get("kernel_ns"):
        kernels = [kernel / step for kernel, step in zip(unscaled["kernel_ns"], unscaled["step_ns"], strict=True)]
        if kernels[0] < IDLE:
            _say(
                f"the device waits for its host: of a step at micro-batch size {found.microbatch_sizes[0]} kernels take"
                f" {kernels[0]:.0%}; larger micro-batches use it better"
            )


def _tell_if_weak(found: Profile) -> None:
    """Say when operators account for too little of a step."""
    unscaled = found.extra.get("unscaled")
    if not isinstance(unscaled, dict):
        return
    covered, size = min(zip(unscaled["coverage"], found.microbatch_sizes, strict=False))
    if covered < COVERED:
        _say(
            f"a weak profile: at micro-batch size {size} operators account for {covered:.0%} of the step; they are so "
            "small that marks and Python are the time; give larger --microbatch-sizes"
        )
    most, size = max(zip(unscaled["coverage"], found.microbatch_sizes, strict=False))
    if most > OVER_COVERED:
        _say(
            f"operators are measured too long: at micro-batch size {size} they sum to {most:.0%} of the step, to "
            "which they are scaled; shares of short operators are too high; give larger --microbatch-sizes"
        )


def _answer(found: Profile) -> dict[str, object]:
    """Return what the command says of a profile; a dry run has no coverage."""
    graph, unscaled = found.graph, found.extra.get("unscaled", {})
    assert isinstance(unscaled, dict)  # noqa: S101 - made by the profiler
    return {
        "operators": len(graph.operators),
        "edges": sum(len(tensor.consumers) for tensor in graph.tensors),
        "parameters": sum(math.prod(parameter.shape) for parameter in graph.parameters),
        "flop": sum(operator.flop for operator in graph.operators),
        "device": found.device.name,
        "coverage": min(unscaled["coverage"]) if unscaled else None,
        "step_ns": list(found.whole.step_ns),
        "fingerprint": graph.fingerprint,
        "plan_only": found.origin.plan_only,
    }


def _sizes(flag: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} {text!r}: whole numbers separated by commas are needed, e.g. 1,2,4") from None
