"""``torchrun --nproc-per-node N -m executor PLAN --model M``: run a plan and say how it went.

Every rank ends with ``PENSTOCK_EXIT=n`` on stderr, because torchrun itself knows only 0 and 1.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout

from costmodel.errors import PenstockError
from executor.communication.watch import farewell


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank; returns its exit code (`docs/guide.md`)."""
    rank = int(os.environ.get("RANK", "0"))
    wants_json = "--json" in (sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parser().parse_args(argv)
        from executor.run import run_plan  # torch comes with it, --help does without

        with redirect_stdout(sys.stderr):  # a user's model may print
            answer = run_plan(arguments)
    except SystemExit as error:  # argparse has said what is wrong
        code = error.code if isinstance(error.code, int) else 2
        farewell(code)
        return code
    except PenstockError as error:
        return _fail(error.exit_code, str(error), rank, wants_json)
    except KeyboardInterrupt:
        return _fail(130, "interrupted", rank, wants_json)
    except Exception:
        traceback.print_exc()
        return _fail(1, "this is a bug of ours: please report it with the lines above", rank, wants_json)
    if rank == 0 and wants_json:
        print(json.dumps(answer.numbers))
    farewell(answer.exit_code, answer.verdict if rank == 0 else "")
    return answer.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchrun --nproc-per-node N -m executor", description="Run a plan.")
    parser.add_argument("plan", metavar="PLAN", help="a plan file, or a book, of which the page for as many ranks runs")
    parser.add_argument("--model", required=True, help="module:function or zoo:NAME[:small], the one that was profiled")
    parser.add_argument("--steps", type=_positive, default=5, metavar="K", help="steps to run (5); the first warms up")
    parser.add_argument("--check", action="store_true", help="compare the first step's gradients with one process")
    parser.add_argument("--timeline", metavar="FILE", help="write the last step's measured timeline")
    parser.add_argument(
        "--step-log", metavar="FILE", help="write one JSON line a step: predicted, measured, slowest rank"
    )
    parser.add_argument("--emulate", action="store_true", help="hold each action for its planned time")
    parser.add_argument(
        "--autocast", choices=("bfloat16",), help="run forwards under autocast to it (default: as the plan says)"
    )
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="silence after which a rank is lost")
    parser.add_argument("--threads", type=_positive, default=1, metavar="T", help="CPU threads a rank (1)")
    parser.add_argument("--seed", type=int, default=0, help="for the model's parameters and inputs (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on rank 0")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def _fail(code: int, message: str, rank: int, wants_json: bool) -> int:
    if wants_json and rank == 0:
        print(json.dumps({"error": message, "exit": code}))
    farewell(code, f"rank {rank}: error: {message}")
    return code


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if exit_code:
        os._exit(exit_code)  # connections that broke would be waited for in the interpreter's own end
    sys.exit(0)
