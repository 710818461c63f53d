"""Profiler and stages put every tensor where the model is: nothing is left on the CPU by mistake."""

import subprocess
import sys
from pathlib import Path


def test_a_model_on_another_device_is_captured_profiled_and_trained_without_a_tensor_on_the_cpu():
    root = Path(__file__).parent.parent
    run = subprocess.run([sys.executable, "-m", "tests.other_device"], capture_output=True, text=True, cwd=root)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.splitlines()[-1] == "done"
