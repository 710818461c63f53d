"""The command ``penstock``: one module a subcommand, imported only when it is called.

Knows the names, the exit codes and how answers and errors are printed; what a command does is in its
module, which has ``add_arguments(parser)`` and ``run(args) -> Answer``. Starts without any library, so
that it works on a GPU box and answers ``--help`` at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from costmodel.errors import PenstockError, UsageError
from planner.commands.answer import INTERRUPTED, print_answer, print_error
from planner.search.interrupts import as_before

COMMANDS = {
    "profile": "measure a torch model operator by operator",
    "links": "measure latency and bandwidth between ranks",
    "model": "describe a model from its shape, without torch or a GPU, times estimated",
    "plan": "cut a profiled model into a graph of stages, with a schedule and a proved bound",
    "partition": "cut another planner's instance under that planner's own objective, with a proved bound",
    "simulate": "predict the timeline and memory of a plan, or of a schedule by name",
    "schedules": "compare all schedules of the catalogue on one pipeline, as a table and in charts",
    "compare": "put plans side by side",
    "fit": "let measured steps of your own move the constants that they identify",
    "explain": "say why a plan takes as long as it does, and what would change that",
    "validate": "check a plan independently of the planner",
    "import": "read layers, other planners' instances, nccl-tests output or a topology into our files",
    "doctor": "say what this machine can do, and why not where it cannot",
}

_MODULES = {"import": "import_"}
"""Commands whose names are Python's own words."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours, so that ``--json`` gets them too."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with the way to the help text."""
        raise UsageError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (`docs/guide.md`, "Exit codes")."""
    if argv is None:
        return _main(sys.argv[1:])
    with as_before():
        return _main(list(argv))


def _main(arguments: list[str]) -> int:
    as_json = "--json" in arguments
    try:
        return _run(arguments)
    except PenstockError as error:
        return print_error(str(error), error.exit_code, as_json)
    except KeyboardInterrupt:
        return print_error("interrupted", INTERRUPTED, as_json)
    except BrokenPipeError:  # the reader of our output went away: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "PENSTOCK_TRACEBACK" in os.environ:
            raise
        text = f"a bug of Penstock's: {type(error).__name__}: {error}; PENSTOCK_TRACEBACK=1 shows where"
        return print_error(text, 1, as_json)


def _run(arguments: list[str]) -> int:
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    if chosen not in COMMANDS:
        _top_parser().parse_args(arguments)  # --help and --version leave here
        known = ", ".join(COMMANDS)
        found = f"{chosen!r} is no command" if chosen else "a command is needed"
        raise UsageError(f"{found}; the commands are {known}")
    module = import_module(f"planner.commands.{_MODULES.get(chosen, chosen)}")
    parser = Parser(prog=f"penstock {chosen}", description=module.__doc__, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    module.add_arguments(parser)
    arguments.remove(chosen)
    parsed = parser.parse_args(arguments)
    with redirect_stdout(sys.stderr):  # a user's model may print
        answer = module.run(parsed)
    print_answer(answer, "--json" in arguments)
    return int(answer.exit_code)


def _top_parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
    parser = Parser(
        prog="penstock",
        usage="penstock COMMAND [options]",
        description="Plan pipeline-parallel training offline: profile a model, cut it into a graph of stages,\n"
        "simulate candidate schedules, and write a plan that torch.distributed runs.\n\ncommands:\n" + lines,
        epilog="penstock COMMAND --help shows a command's flags; torchrun -m executor PLAN --model M runs a plan.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"penstock {penstock_version()}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    return parser


def penstock_version() -> str:
    """Return the installed version; "unknown" when run from a folder that was never installed."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "unknown"
