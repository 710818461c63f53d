"""``penstock links``: flags and the answer."""

import argparse
import os
import time

from costmodel import limits
from costmodel.machines.links import CLASSES, LINKS, write_links


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``penstock links``."""
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="links file to write")
    parser.add_argument("--ranks", type=int, default=2, help="local processes to start (default %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default %(default)s")
    parser.add_argument("--overlap", action="store_true", help="measure by what compute slows during a sum, too")


def run(args: argparse.Namespace) -> dict[str, object]:
    """Measure, write the file and return the answer."""
    limits.check("processes", args.ranks, "--ranks")
    import torch

    from costmodel.profiling.links import measure_links

    start = time.perf_counter()
    links = measure_links(args.ranks, args.device, CLASSES, overlap=args.overlap)
    if os.environ.get("RANK", "0") == "0":  # under torchrun every rank measures, one writes
        write_links(args.output, links, {"torch": torch.__version__})
    return {"output": args.output, "seconds": round(time.perf_counter() - start, 3), **LINKS.form.write(links)}
