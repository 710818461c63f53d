"""Command lines that run at once, and one flag of each at a time at an odd or enormous value.

Each runs in a process of its own, forked from one that has the libraries, under limits of time and memory. Leaves out
values that are words (names, files): tests of each command misuse those.
"""

import argparse
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

from planner.commands import main, parser_of

SIZES = ("1000000", "1000000000", str(2**63))
ODD = ("0", "-1", "0.5", "1e308", "1e400", "1e-320", "nan", "inf", "", " ", "x", "0x10", "9" * 5000)
LINES = {
    "profile": "profile zoo:mmt:small --dry-run -o measured.json",
    "links": "links -o links.json --ranks 65",
    "model": "model config.json -o model.json",
    "plan": "plan profile.json --cluster cluster.toml --devices 4 --batch 16 --target any --time-limit 0.3 -o new.json",
    "simulate": "simulate --schedule 1f1b --ranks 4 --microbatches 8",
    "schedules": "schedules --ranks 4 --microbatches 8",
    "compare": "compare plan.json old.json",
    "fit": "fit runs.csv -o fitted.toml",
    "explain": "explain plan.json --profile profile.json --time-limit 0.1",
    "whatif": "whatif plan.json --jitter 5% --slow-ranks 5%",
    "show": "show plan.json",
    "diff": "diff plan.json old.json",
    "calibrate": "calibrate plan.json --measured timeline.json --profile profile.json -o calibrated.json",
    "validate": "validate plan.json",
    "export": "export plan.json --to torch-csv -o exported",
    "import": "import layers table.csv -o layers.json",
}
"""What takes neither long nor a GPU, for each command that takes a number."""
TEMPLATES = {
    ("--limit",): ("actions={}", "devices={}", "operators={}", "batch={}", "bytes={}"),
    ("--microbatch-sizes",): ("{}", "1,{}"),
    ("--tensor",): ("{}", "1,{}"),
    ("--set",): (
        "link.nvlink.bandwidth={}x", "link.ib.latency={}us", "device.a100.memory={}GiB", "rank.3.speed={}",
        "rank.{}.speed=2", "device.a100.speed={}x",
    ),
    ("--sweep",): ("rank.3.speed=1,{}", "link.nvlink.bandwidth=1x,{}x", "device.a100.memory={}GiB,40GiB"),
    ("--by",): ("{}%",), ("--jitter",): ("{}%",), ("--slow-ranks",): ("{}%",),
    ("--schedule",): ("wave-{}", "{}"), ("--planner",): ("random:{}",),
}  # fmt: skip
"""Values with a number in them, for flags that take no plain one; flags of words alone are left out."""
MOST_S, MOST_BYTES = 5, 2 * 2**30
"""What an answer to a small question may take, whatever is asked, of files as of flags."""
DECLARED = (0, 2, 3, 4, 5, 6, 7)
TIME_LIMITS = "--time-limit=", "--deterministic-limit="
"""What may take as long as it is told, where that is allowed."""


def command_lines(values: tuple[str, ...] = SIZES + ODD) -> Iterator[list[str]]:
    """Yield every command line with one of its flags at each value."""
    for command, line in LINES.items():
        for action in parser_of(command)._actions:
            for text, value in product(_templates(action), values):
                given = f"{action.option_strings[-1]}={text.format(value)}"
                if not (given.startswith(TIME_LIMITS) and value == SIZES[0]):
                    yield [*line.split(), given]
    for text, value in product(("random:{}:1", "random:100:{}"), values):
        yield ["model", text.format(value), "-o", "model.json"]


def _templates(action: argparse.Action) -> tuple[str, ...]:
    numeric = action.type is not None and not action.choices
    return TEMPLATES.get(tuple(action.option_strings[-1:]), ("{}",) if numeric else ())


def load() -> None:
    """Import what commands import when they run, so that a forked process need not."""
    import ortools.sat.python.cp_model  # noqa: F401
    import torch  # noqa: F401

    for command in LINES:
        parser_of(command)


def outcome(words: list[str], home: Path, most_s: float = MOST_S) -> str:
    """Run a command in the folder; return ``read`` (it answers), ``refused`` (it says why not), or what is wrong."""
    start = time.perf_counter()
    child = os.fork()
    if not child:
        os._exit(_in_child(words, home))
    with suppress(PermissionError):  # it may have done so, and have ended
        os.setpgid(child, child)
    ended, status = 0, 0
    while not ended and time.perf_counter() - start < most_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0 if ended else 0.01)
    if not ended:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"longer than {most_s} s"
    said = (home / "said").read_text(errors="replace")
    code = os.waitstatus_to_exitcode(status)
    if code not in DECLARED or "Traceback" in said or "a bug of" in said:
        return f"exit {code}: {said.strip()[-200:]}"
    if code and not said.strip():
        return f"exit {code} without a word"
    return "refused" if code else "read"


def _in_child(words: list[str], home: Path) -> int:
    os.setpgid(0, 0)  # whichever of the two comes first
    os.chdir(home)
    said = os.open("said", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout = sys.stderr = os.fdopen(said, "w", 1)  # a test runner's own would be kept from the file
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    try:
        code = main(words)
    except SystemExit as error:
        code = int(error.code or 0)
    sys.stdout.flush()
    return code
