"""What ends ``penstock plan`` from outside: it keeps its best, and no process of it stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from costmodel.model.profile import write_profile
from costmodel.zoo.generated import generate
from tests.properties.faulted_commands import fault_failures
from tests.properties.interrupted_runs import interrupt_failures
from tests.support.repository import ROOT

PATIENCE_S = 300
COMMAND_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module", name="folder")
def folder_with_profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signals")
    write_profile(folder / "profile.json", generate("random:24:5"))
    return folder


def planning(folder: Path, name: str) -> subprocess.Popen[str]:
    """A search that takes long, with its solver at work."""
    command = [sys.executable, "-m", "planner", "plan", "profile.json", "--devices", "4", "--batch", "32", "--stages",
               "4", "-o", name, "--time-limit", "600", "--deterministic-limit", "1000"]  # fmt: skip
    return subprocess.Popen(command, cwd=folder, env=COMMAND_ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def solver_of(process: subprocess.Popen[str]) -> int:
    """Wait for the solver's process and return its id."""
    for _ in range(100 * PATIENCE_S):
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if b"planner.search.solvers.cpsat.solver" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        time.sleep(0.01)
    raise AssertionError("the search started no solver")


def ends(pid: int) -> bool:
    for _ in range(100 * PATIENCE_S):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_search_that_is_told_to_end_writes_its_best_and_leaves_no_solver(folder: Path, how: signal.Signals) -> None:
    name = f"{how.name}.json"
    with planning(folder, name) as process:
        solver = solver_of(process)
        process.send_signal(how)
        assert process.wait(PATIENCE_S) == 130
    assert ends(solver)
    plan = json.loads((folder / name).read_text())
    assert plan["search"]["limited_by"] == "interrupted"
    assert len({tuple(stage["ranks"]) for stage in plan["stages"]}) == 4  # as asked, several stages a place or one


def test_a_search_that_is_killed_leaves_no_solver(folder: Path) -> None:
    with planning(folder, "never.json") as process:
        solver = solver_of(process)
        process.kill()
    assert ends(solver)
    assert not (folder / "never.json").exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_command_told_to_end_behind_its_answer_ends_with_a_code_of_ours(folder: Path, how: signal.Signals) -> None:
    """Python hears signals in its usual way again when it ends."""
    command = [sys.executable, "-m", "planner", "simulate", "--schedule", "1f1b", "--ranks", "4", "--microbatches", "8",
               "--json"]  # fmt: skip
    with subprocess.Popen(command, cwd=folder, env=COMMAND_ENVIRONMENT, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(how)
        assert process.wait(PATIENCE_S) in (0, 130)  # 130: before all of the answer was out


def test_a_search_interrupted_at_any_moment_leaves_a_plan_that_validates() -> None:
    assert interrupt_failures(3) == []


def test_a_command_that_is_killed_or_told_to_end_leaves_nothing_behind() -> None:
    """200 faults: ``python -m benchmarks.reliability --full --only faults``."""
    assert fault_failures(4) == []
