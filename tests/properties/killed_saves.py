"""Jobs whose ranks are all killed while their second checkpoint is written, and what their folder gives then.

Everything that is saved holds the number of the step, each element of it: so a mixture of two checkpoints shows.
``python -m tests.properties.killed_saves NUM_KILLS`` runs the cases in forks of one process that has captured the
model.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import torch
from torch import nn

import executor.state.checkpoint  # noqa: F401 - read once, not by each fork
from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture, capture
from costmodel.stages.config import StageConfig
from executor import Pipeline
from planner.plan import Plan
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand
from tests.support.ranks.rank_pool import environment, free_port

WIDTH, NUM_RANKS, LATEST_S = 768, 2, 0.5
KINDS = {
    "pipeline": {"num_stages": 2},
    "zero-1": {"num_stages": 1, "ranks": [(0, 1)], "configs": [StageConfig(data=2, zero=1)]},
    "alone": {"num_stages": 1},
}


@cache
def captured() -> Capture:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    x = torch.randn(8, WIDTH)
    return capture(TrainingModel("wide", model, (x,), {}, None, False, lambda y: y.square().mean(), {}, 8), 2)


def plan_of(kind: str) -> Plan:
    options = dict(KINDS[kind])
    groups = in_equal_runs(captured().operators, options.pop("num_stages"))
    return plan_by_hand(captured(), groups, optimizer="adam", **options)


def pipeline(kind: str) -> Pipeline:
    return Pipeline(plan_of(kind), captured(), optimizer=torch.optim.Adam, timeout_s=60.0)


def mark(pipe: Pipeline, number: int) -> None:
    """Let all that is saved hold a number."""
    with torch.no_grad():
        for parameter in pipe.parameters():
            parameter.fill_(number)
        for state in pipe.optimizer.state.values():
            for value in state.values():
                value.fill_(number)
    pipe.optimizer.param_groups[0]["mark"] = number


def saves_twice(kind: str, folder: str, begins: int) -> None:
    with pipeline(kind) as pipe:
        for number in (1, 2):
            pipe.step()
            mark(pipe, number)
            if number == 2:
                os.write(begins, b"x")
            pipe.save(folder, extra=number)
        time.sleep(60)  # until it is killed


def loads(folder: str) -> int:
    """Load what is there; returns its step if all of it is of that one."""
    with pipeline("alone") as pipe:
        steps = pipe.load(folder)
        found = {pipe.extra, pipe.optimizer.param_groups[0]["mark"]}
        for tensor in pipe.state_dict().values():
            found |= set(tensor.unique().tolist())
        for state in pipe.optimizer_state_dict().values():
            found |= {x for value in state.values() for x in torch.as_tensor(value).unique().tolist()}
        assert found == {steps}, f"a mixture: {sorted(found)} at step {steps}"
        return steps


def _forked(rank: int, num_ranks: int, port: int, said: Path, work: Callable[[], int | None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 255
    try:
        os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        os.environ |= environment(rank, num_ranks, port)
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def case(number: int) -> dict[str, object]:
    """Kill one job; returns the step that its folder gives (0 where it gives none), and what was said."""
    kind, rng = ("pipeline", "zero-1")[number % 2], Random(number)
    with tempfile.TemporaryDirectory() as name:
        folder, said, port = f"{name}/checkpoint", Path(name) / "said", free_port()
        heard, begins = os.pipe()
        ranks = [_forked(r, NUM_RANKS, port, said, lambda: saves_twice(kind, folder, begins)) for r in range(NUM_RANKS)]
        os.close(begins)
        began = os.read(heard, 1)
        os.close(heard)
        time.sleep(rng.uniform(0.0, LATEST_S))
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
        for pid in ranks:
            os.waitpid(pid, 0)
        left = len(list(Path(folder).glob("*.safetensors")))
        _, status = os.waitpid(_forked(0, 1, free_port(), said, lambda: loads(folder)), 0)
        step = os.waitstatus_to_exitcode(status)
        problem = "" if began and step in (1, 2) else said.read_text()[-800:] or "no save began"
        return {"case": number, "kind": kind, "step": step, "files": left, "problem": problem}


def rows(num_kills: int) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.properties.killed_saves", str(num_kills)], stdout=subprocess.PIPE, text=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def failures(num_kills: int) -> list[str]:
    """Kill so many jobs; return those whose folder gives no whole checkpoint, or that all kills fell on one side."""
    found = rows(num_kills)
    wrong = [f"kill {row['case']} ({row['kind']}): {row['problem']}" for row in found if row["problem"]]
    wrong += [f"only {len(found)} of {num_kills} kills"] if len(found) < num_kills else []
    if num_kills >= 100 and {row["step"] for row in found} != {1, 2}:
        wrong.append(f"kills fell on one side of the saves alone: {[row['step'] for row in found]}")
    return wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    captured()
    for number in range(int(sys.argv[1])):
        print(json.dumps(case(number)), flush=True)
