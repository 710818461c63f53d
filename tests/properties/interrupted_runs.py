"""``penstock plan`` as a whole command, ended from outside at random moments, or by its time limit.

Leaves out what the plans are like: each is checked by ``penstock validate``.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from costmodel.errors import NoPlanFits
from costmodel.model.profile import write_profile
from costmodel.zoo.generated import generate
from tests.support.repository import ROOT

BATCHES = (32, 128, 1024)
SPECS = ("random:12:3", "random:60:5", "nasnet", "random:400:7", "random:2000:9")
DEVICES = (4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Scope:
    """Models, numbers of devices and time limits that cases are drawn from, and whether plans may not fit."""

    specs: tuple[str, ...]
    devices: tuple[int, ...]
    limits_s: tuple[float, ...]
    may_not_fit: bool = False


INTERRUPTED = Scope(SPECS, DEVICES, (2.0, 5.0, 10.0))
LARGE = Scope((*SPECS, "random:10000:11"), (*DEVICES, 256, 1024), (0.5, 1.0, 2.0, 5.0, 10.0), may_not_fit=True)
PATIENCE_S, LATE_S = 300.0, 1.0
"""After which a run counts as hanging, and by how much one may be later than its time limit."""


def interrupt_failures(num_cases: int) -> list[str]:
    """Return a line for each run that ends otherwise than with 130, or 0 when done, and a plan that validates."""
    found = []
    for seed in range(num_cases):
        rng = Random(f"interrupt {seed}")
        command, plan = _command(rng, rng.choice(INTERRUPTED.limits_s), INTERRUPTED)
        after_s, how = rng.random() ** 2 * 9, rng.choice((signal.SIGINT, signal.SIGTERM))
        with _started(command) as process:
            wait_until_it_hears(process)
            time.sleep(after_s)
            process.send_signal(how)
            code = process.wait(PATIENCE_S)
        if code not in (0, 130) or not _validates(plan):
            found.append(f"seed {seed}: {how.name} after {after_s:.2f} s: exit {code}: {' '.join(command[2:])}")
        plan.unlink(missing_ok=True)
    return found


def limit_failures(num_cases: int) -> list[str]:
    """Return a line for each run without a plan that validates, or later than its time limit by more than a second."""
    return _late(num_cases, Scope(SPECS, DEVICES, (0.5, 1.0, 2.0, 3.0, 5.0)), LATE_S)


def large_limit_failures(num_cases: int) -> list[str]:
    """Do the same up to 10,000 operators and 1,024 devices; later by 2 s and more counts there."""
    return _late(num_cases, LARGE, 2.0)


def _late(num_cases: int, scope: Scope, most_s: float) -> list[str]:
    found = []
    for seed in range(num_cases):
        rng = Random(f"limit {seed}")
        limit_s = rng.choice(scope.limits_s)
        command, plan = _command(rng, limit_s, scope)
        start = time.perf_counter()
        with _started(command) as process:
            code = process.wait(PATIENCE_S)
        late_s = time.perf_counter() - start - limit_s
        reason = scope.may_not_fit and code == NoPlanFits.exit_code
        if not (reason or (code == 0 and _validates(plan))) or late_s > most_s:
            found.append(f"seed {seed}: exit {code}, {late_s:.2f} s late: {' '.join(command[2:])}")
        plan.unlink(missing_ok=True)
    return found


def wait_until_it_hears(process: subprocess.Popen[Any]) -> None:
    """Wait until a command handles SIGTERM, or has ended: before, nothing of ours runs."""
    caught = 1 << (signal.SIGTERM - 1)
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None and not int(_field(status.read_text(), "SigCgt") or "0", 16) & caught:
        time.sleep(0.001)


def _field(text: str, name: str) -> str:
    return next((line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:")), "")


def _command(rng: Random, limit_s: float, scope: Scope) -> tuple[Sequence[str], Path]:
    profile, devices = _profile(rng.choice(scope.specs)), rng.choice(scope.devices)
    plan = profile.with_name("plan.json")
    command = [sys.executable, "-m", "planner", "plan", str(profile), "--devices", str(devices),
               "--batch", str(rng.choice(BATCHES)), "--time-limit", str(limit_s), "-o", str(plan)]  # fmt: skip
    return command, plan


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)


def _validates(plan: Path) -> bool:
    command = [sys.executable, "-m", "planner", "validate", str(plan), "--json"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return plan.exists() and bool(json.loads(told.stdout).get("ok"))


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


@cache
def _profile(spec: str) -> Path:
    path = Path(_folder().name) / f"{spec.replace(':', '-')}" / "profile.json"
    path.parent.mkdir()
    write_profile(path, generate(spec))
    return path
