"""Run Penstock's commands as a person would type them, and read their JSON answers."""

import json
import os
import subprocess
import sys
from typing import Any


def penstock(*words: object) -> dict[str, Any]:
    """Run ``penstock WORDS --json`` and return its answer; its progress stays visible on stderr."""
    print("$ penstock", *words, flush=True)
    return _answer([sys.executable, "-m", "planner", *map(str, words), "--json"])


def torchrun(num_ranks: int, *words: object) -> dict[str, Any]:
    """Run ``torchrun --nproc-per-node N -m executor WORDS --json``, one thread a rank, and return its answer."""
    print(f"$ torchrun --nproc-per-node {num_ranks} -m executor", *words, flush=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    return _answer([*launcher, "-m", "executor", *map(str, words), "--json"])


def _answer(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # torchrun would warn and set the same
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
