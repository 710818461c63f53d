"""The command ``penstock``: one module a subcommand, imported only when it is called.

Knows the names, the exit codes and how answers and errors are printed; what a command does is in its
module, which has ``add_arguments(parser)`` and ``run(args) -> Answer``. Starts without any library, so
that it works on a GPU box and answers ``--help`` at once.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from errno import ENOSPC
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from costmodel.errors import InvalidInput, PenstockError, UsageError
from costmodel.limits import LIMITS, raised, read_limits
from costmodel.outputs import check_format, check_outputs
from planner.commands.answer import INTERRUPTED, print_answer, print_error
from planner.interrupts import as_before, defer, ignore, restore

NEEDED_BY = {
    "torch": "profile, links, executor",
    "networkx": "profile, executor",
    "ortools": "plan",
    "numba": "plan",
    "numpy": "plan, simulate",
    "pandas": "tables",
    "matplotlib": "charts",
    "rich": "tables on the screen",
    "shtab": "completion in shells",
}
"""Libraries that a machine which only profiles or trains may lack, and what needs each."""

COMMANDS = {
    "profile": "measure a torch model operator by operator",
    "links": "measure latency and bandwidth between ranks",
    "model": "describe a model from its shape, without torch or a GPU, times estimated",
    "plan": "cut a profiled model into a graph of stages, with a schedule and a proved bound",
    "book": "plan for N, N - 1, ... hosts in one file, with what moves when a host is lost",
    "memory": "say what a model takes of each device by strategy, whether that fits, and what would make it fit",
    "buy": "say on which machines to train a model, by cost and days of the whole run",
    "ablation": "say what each means of a plan gains: branches, larger micro-batches, split backward, shared devices",
    "simulate": "predict the timeline and memory of a plan, or of a schedule by name",
    "schedules": "compare all schedules of the catalogue on one pipeline, as a table and in charts",
    "compare": "put plans side by side",
    "fit": "let measured steps of your own move the constants that they identify",
    "explain": "say why a plan takes as long as it does, and what would change that",
    "whatif": "say what a plan would take on other machines, and which input moves it most",
    "show": "say in words what is in a plan",
    "diff": "say what two plans do differently",
    "calibrate": "move a profile to what a run of a plan took, with the errors before and after",
    "validate": "check a plan independently of the planner",
    "export": "write a plan as files for torch, torchtitan, Megatron-LM or DeepSpeed",
    "import": "read layers, other trainers' plans and traces, nccl-tests output or a topology into our files",
    "completion": "print what makes a shell complete commands and flags",
    "doctor": "say what this machine can do, and why not where it cannot",
}

FORMS = {
    "schedules": ("simulate", "--schedule all", "compare all schedules of the catalogue"),
    "diff": ("compare", "", "the diff of two plans is in --json of compare"),
    "show": ("explain", "--summary", "only say in words what is in the plan"),
    "ablation": ("whatif", "--means", "say what each means of a plan gains, from a PROFILE"),
    "calibrate": ("fit", "--measured", "move a profile to a run of a PLAN"),
    "completion": ("doctor", "--completion", "print what makes a SHELL complete commands and flags"),
}
"""Commands whose names go with the next release, as forms of those that stay: the command and the words that ask."""

_MODULES = {"import": "import_"}
"""Commands whose names are Python's own words."""


CLOSED = 141
"""Exit code when the reader of the output went away: that of a shell's SIGPIPE."""
OUTPUTS = ("output", "chart", "html", "trace", "cluster_output", "timeline_output", "costs_output", "orders_output")
"""Flags that name files to write."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours, so that ``--json`` gets them too."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with the way to the help text."""
        raise UsageError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (`docs/guide.md`, "Exit codes")."""
    if argv is None:
        defer()
        code = INTERRUPTED
        try:
            code = _main(sys.argv[1:])
            ignore()
        except KeyboardInterrupt:  # behind the answer
            ignore()
        exec("")  # noqa: S102 - after an interrupt inside exec, as in torch's, `python -m` ends by SIGINT, not by our code
        return code
    with as_before():
        return _main(list(argv))


def main_of(module: ModuleType, prog: str, argv: Sequence[str]) -> int:
    """Run a module that is made like a command's, under another name: its errors and answers are printed alike."""
    return _main(list(argv), lambda arguments: _answered(module, _parser(module, prog), arguments))


def _main(arguments: list[str], run: Callable[[list[str]], int] | None = None) -> int:
    as_json = "--json" in arguments
    try:
        return (run or _run)(arguments)
    except PenstockError as error:
        return print_error(str(error), error.exit_code, as_json)
    except KeyboardInterrupt:
        return print_error("interrupted", INTERRUPTED, as_json)
    except BrokenPipeError:  # the reader of our output went away: nothing is left to say
        return _without_stdout(CLOSED)
    except OSError as error:
        if error.errno != ENOSPC:
            return _bug(error, as_json)
        _without_stdout(0)
        return print_error("nothing more can be written to the output: no space is left", InvalidInput.exit_code, False)
    except ModuleNotFoundError as error:
        package = error.name
        if package not in NEEDED_BY:
            return _bug(error, as_json)
        text = (
            f"{package} is not installed for {sys.executable}: pip install {package} (executor, profile, links and "
            "validate need torch alone; penstock doctor shows what is there)"
        )
        return print_error(text, UsageError.exit_code, as_json)
    except Exception as error:
        return _bug(error, as_json)


def _bug(error: Exception, as_json: bool) -> int:
    if "PENSTOCK_TRACEBACK" in os.environ:
        raise error
    text = f"a bug of Penstock's: {type(error).__name__}: {error}; PENSTOCK_TRACEBACK=1 shows where"
    return print_error(text, 1, as_json)


def _without_stdout(exit_code: int) -> int:
    """Let what is still to be printed go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code


def _run(arguments: list[str]) -> int:
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    if chosen not in COMMANDS:
        _top_parser().parse_known_args(arguments)  # --help and --version leave here
        known = ", ".join(name for name in COMMANDS if name not in FORMS)
        found = f"{chosen!r} is no command" if chosen else "a command is needed"
        raise UsageError(f"{found}; the commands are {known}")
    arguments.remove(chosen)
    chosen = form_of(chosen, arguments)
    return _answered(_module(chosen), parser_of(chosen), arguments)


def form_of(command: str, arguments: list[str]) -> str:
    """Return the command that a form of another stands for, whose own words are then no longer among the arguments."""
    for name, (whole, words, _) in FORMS.items():
        asked = words.split()
        places = [i for i in range(len(arguments)) if asked and arguments[i : i + len(asked)] == asked]
        if whole == command and places:
            if words != "--measured":  # which calibrate has as well
                del arguments[places[0] : places[0] + len(asked)]
            return name
    return command


def _answered(module: ModuleType, parser: Parser, arguments: list[str]) -> int:
    parsed = parser.parse_args(arguments)
    _check_files(parsed, getattr(module, "WRITES", ""))
    loads = getattr(module, "LOADS", ())
    for name in loads:
        import_module(name)
    if not loads:  # operators and actions stay: to look for cycles among a million of them takes a fifth of the time
        gc.set_threshold(100_000, 20)
    if not getattr(module, "KEEPS_ITS_BEST", False):
        restore()
    with raised(read_limits(parsed.limit)), redirect_stdout(sys.stderr):  # a user's model may print
        answer = module.run(parsed)
    if sys.stdout is None:
        return CLOSED
    print_answer(answer, "--json" in arguments)
    sys.stdout.flush()
    return int(answer.exit_code)


def _module(command: str) -> ModuleType:
    return import_module(f"planner.commands.{_MODULES.get(command, command)}")


def parser_of(command: str) -> Parser:
    """Return the parser of a command's flags, whose description is its module's text."""
    parser = _parser(_module(command), f"penstock {command}")
    forms = [(words, text, old) for old, (name, words, text) in FORMS.items() if name == command and words]
    parser.epilog = "\n".join(f"with {words}: {text} (penstock {old} --help)" for words, text, old in forms)
    return parser


def _parser(module: ModuleType, prog: str) -> Parser:
    parser = Parser(prog=prog, description=module.__doc__, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="NAME=N", help=f"allow more: {', '.join(LIMITS)}"
    )
    module.add_arguments(parser)
    return parser


def _check_files(parsed: argparse.Namespace, kind: str) -> None:
    """Refuse outputs that are inputs or of another kind than what a command writes, before anything is read."""
    texts: dict[str, list[str]] = {}
    for name, value in vars(parsed).items():
        texts[name] = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
    written = [text for name in OUTPUTS for text in texts.pop(name, [])]
    check_outputs(written, [text for row in texts.values() for text in row])
    if kind:
        check_format(parsed.output, kind)


def _top_parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items() if name not in FORMS)
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
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("penstock")
    except PackageNotFoundError:
        return "unknown"
