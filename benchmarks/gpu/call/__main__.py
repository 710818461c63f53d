"""One call on a GPU machine: smoke (every path once at small size), then main (what there is to measure).

    python -m benchmarks.gpu.call smoke|main SECONDS [--device cuda|cpu] [--models NAME,...] [--out DIR] [--dry-run]

Results are five files under DIR, at most 15 MiB each, written again after every step; processes work in a folder beside
it. `h100_call.sh` starts this on a machine that has nothing but torch and the project.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.call.agenda import BOXES, Agenda
from benchmarks.gpu.call.parent import Call


def main(argv: Sequence[str] | None = None) -> None:
    """Run the call, or print what it would do."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.call", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("plan", choices=("smoke", "main"), nargs="?", default="main")
    parser.add_argument("seconds", metavar="SECONDS", type=float, nargs="?", default=520.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", metavar="LIST", default="", help=f"of {', '.join(BOXES)}; default the plan's")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("out/h100"))
    parser.add_argument("--dry-run", action="store_true", help="print each step, its box and what it answers")
    args = parser.parse_args(argv)
    models = tuple(name for name in args.models.split(",") if name)
    if unknown := sorted({*models} - {*BOXES}):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(BOXES)}")
    agenda = Agenda(args.plan, args.seconds, args.device, models, os.cpu_count() or 1)
    if args.dry_run:
        print(agenda.table())
        return
    out = args.out.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is there is packed all the same
    Call(agenda, out, Path(os.environ.get("H100_WORK") or out.parent / f"h100-work-{args.plan}")).run()


if __name__ == "__main__":
    main()
