"""Scripts of other trainers' jobs, run to their end: what a rank printed as JSON comes back."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT

LIMIT_S = 500


def ran(script: str, *arguments: object, ranks: int) -> dict[str, Any]:
    """Run a script of this folder on so many ranks, and return the object that it printed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *launcher, str(Path(__file__).with_name(script)), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(printed) == 1, printed
    found: dict[str, Any] = json.loads(printed[0])
    return found
