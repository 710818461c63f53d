"""Commands that are killed, told to end or interrupted at random moments: what they leave behind.

Each runs as a process of its own with a mark in its environment, which its children inherit: who still has it some
seconds after the command has ended is an orphan. Leaves out the executor's ranks
(`tests.properties.executor_promises`).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from planner.search.solvers import compile_kernels
from tests.properties.interrupted_runs import PATIENCE_S, wait_until_it_hears
from tests.support.example_files import write_examples
from tests.support.repository import ROOT

COMMANDS = (
    "links -o links.json --ranks 2",
    "profile zoo:mmt:small -o measured.json",
    "plan profile.json --devices 4 --batch 32 --stages 4 -o new.json --time-limit 60 --deterministic-limit 100",
    "explain plan.json --profile profile.json --time-limit 5",
    "whatif plan.json --sweep devices=2,4 --profile profile.json --time-limit 5 --chart chart.png",
)
FAULTS: Mapping[str, tuple[Callable[[int, int], None], signal.Signals]] = {
    "kill -9": (os.kill, signal.SIGKILL),
    "SIGTERM": (os.kill, signal.SIGTERM),
    "SIGINT": (os.kill, signal.SIGINT),
    "Ctrl-C": (os.killpg, signal.SIGINT),  # a terminal's goes to the command and all that it started
}
LATEST_S, ORPHAN_S = 8.0, 30.0
MARK = "PENSTOCK_TEST_FAULT"


def fault_failures(num_cases: int) -> list[str]:
    """Return a line for each fault after which a process is left, a file is torn, or the command ends in other ways."""
    found = []
    with TemporaryDirectory() as folder:
        write_examples(Path(folder))
        compile_kernels.main()  # else a command starts a process that outlives it, as it should
        for seed in range(num_cases):
            rng = Random(f"fault {seed}")
            command, fault = rng.choice(COMMANDS), rng.choice(list(FAULTS))
            after_s = rng.random() ** 2 * LATEST_S
            wrong = _wrong(command, fault, after_s, f"{os.getpid()}.{seed}", Path(folder))
            found += [f"seed {seed}: {fault} after {after_s:.2f} s: {command}: {wrong}"] if wrong else []
    return found


def _wrong(command: str, fault: str, after_s: float, mark: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), MARK: mark}
    words = [sys.executable, "-m", "planner", *command.split()]
    send, number = FAULTS[fault]
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        wait_until_it_hears(process)
        time.sleep(after_s)
        with suppress(ProcessLookupError):  # it has ended, and all of its group
            send(process.pid, number)
        said = process.communicate(timeout=PATIENCE_S)[1].decode()
    allowed = (0, -signal.SIGKILL) if number is signal.SIGKILL else (0, 130)
    if process.returncode not in allowed or "Traceback" in said:
        return f"exit {process.returncode}: {said[-300:]}"
    until = time.monotonic() + ORPHAN_S
    while _marked(mark) and time.monotonic() < until:
        time.sleep(0.05)
    if left := _marked(mark):
        return f"processes are left: {left}"
    torn = [path.name for path in folder.glob("*.json") if not is_whole(path)]
    return f"torn: {torn}" if torn else ""


def _marked(mark: str) -> list[int]:
    """Return processes that still run with a mark in their environment."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                has = wanted in (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended, or is another user's
                continue
            found += [int(entry.name)] if has else []
    return found


def is_whole(path: Path) -> bool:
    """Whether a JSON file ends as it should."""
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True
