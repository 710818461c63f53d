"""Writes that fail: a disk that is full after so many bytes, and a place where nothing can be written.

The disk is a limit of the process on the size of its files: a write beyond it is cut short and then refused, as on a
disk that fills up. Each command runs in a process of its own, forked from one that has the libraries. Leaves out the
profiler's journal and the executor's own files.
"""

import os
import resource
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from planner.commands import OUTPUTS, main, parser_of
from tests.properties.faulted_commands import is_whole
from tests.support.example_files import write_examples
from tests.support.fuzzed_flags import load

COMMANDS = (
    "profile zoo:mmt:small --dry-run -o new/profile.json",
    "model config.json -o new/model.json.gz",
    "plan profile.json --devices 4 --batch 16 --deterministic-limit 0 -o new/plan.json",
    "simulate --schedule 1f1b --ranks 4 --microbatches 8 --chart new/simulated.png --trace new/trace.json",
    "schedules --ranks 4 --microbatches 8 --chart new/schedules.svg",
    "compare plan.json old.json --chart new/compared.png --html new/compared.html --trace new/traces.json.gz",
    "fit runs.csv -o new/calibration.toml",
    "whatif plan.json --sweep rank.0.speed=0.5,1 --chart new/swept.png",
    "calibrate plan.json --measured timeline.json --profile profile.json -o new/calibrated.json",
    "export plan.json --to megatron -o new/megatron",
    "export plan.json --to deepspeed -o new/deepspeed",
    "import layers table.csv -o new/layers.json",
    "import kineto rank0.json rank1.json -o new/traced.json --timeline-output new/timeline.json "
    "--costs-output new/costs.json --orders-output new/orders.csv",
)
"""What writes files, each with all of its outputs."""
REFUSED = 3
NOWHERE = "/proc"
"""No one may make a file there, the administrator neither."""


def write_failures(num_commands: int) -> list[str]:
    """Let all writes of so many commands fail; return a line for each that then does anything but say so."""
    found = []
    with TemporaryDirectory() as name:
        home = Path(name)
        write_examples(home)
        load()
        import_module("matplotlib.pyplot")
        for command in COMMANDS[-num_commands:]:
            found += [f"{command}: {wrong}" for wrong in _wrong(command.split(), home)]
    return found


def _wrong(words: list[str], home: Path) -> Iterator[str]:
    new, kept = home / "new", home / "kept"
    for folder in (new, kept):
        shutil.rmtree(folder, ignore_errors=True)
    new.mkdir()
    code, said = run(words, home)
    if code or not any(new.iterdir()):
        yield f"exit {code} with room for all: {said[-300:]}"
        return
    shutil.copytree(new, kept)
    sizes = sorted({path.stat().st_size for path in new.rglob("*") if path.is_file()})
    for before in (True, False):
        for most in sorted({0, sizes[0] // 2, sizes[0] - 1, sizes[-1] - 1}):
            shutil.rmtree(new)
            shutil.copytree(kept, new) if before else new.mkdir()
            code, said = run(words, home, most)
            where = f"{most} bytes of {sizes}, {'old files' if before else 'nothing'} there"
            yield from (f"{where}: {wrong}" for wrong in (*_unsaid(code, said), *_harmed(new, kept, before)))
    for flag in _outputs(words):
        elsewhere = [
            NOWHERE + word.removeprefix("new") if words[i - 1] == flag else word for i, word in enumerate(words)
        ]
        yield from (f"{flag} in {NOWHERE}: {wrong}" for wrong in _unsaid(*run(elsewhere, home)))


def _unsaid(code: int, said: str) -> Iterator[str]:
    if code != REFUSED or "cannot be written" not in said or "Traceback" in said:
        yield f"exit {code}: {said[-300:]}"


def _harmed(new: Path, kept: Path, before: bool) -> Iterator[str]:
    """Yield each file that is neither the old one nor a whole new one (seconds differ), and what was left behind."""
    for path in (path for path in new.rglob("*") if path.is_file()):
        old = kept / path.relative_to(new)
        if not old.exists():
            yield f"{path.name} is left behind"
        elif path.stat().st_size != old.stat().st_size and not is_whole(path):
            yield f"{path.name} is cut short"
    if before:
        yield from (f"{old.name} is gone" for old in kept.rglob("*") if not (new / old.relative_to(kept)).exists())


def _outputs(words: Sequence[str]) -> Iterator[str]:
    for action in parser_of(words[0])._actions:
        if action.dest in OUTPUTS:
            yield from (flag for flag in action.option_strings if flag in words)


def run(words: Sequence[str], home: Path, most_bytes: int | None = None) -> tuple[int, str]:
    """Run a command in a folder, where no file may grow beyond a size; return its exit code and what it said."""
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.close(here)
        os._exit(_in_child(list(words), home, there, most_bytes))
    os.close(there)
    with os.fdopen(here, errors="replace") as heard:
        said = heard.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def _in_child(words: list[str], home: Path, out: int, most_bytes: int | None) -> int:
    os.chdir(home)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    try:
        return main(words)
    except SystemExit as error:
        return int(error.code or 0)
