"""Profiler and stages put every tensor where the model is: nothing is left on the CPU by mistake."""

import subprocess
import sys

from tests.support.repository import ROOT


def test_a_model_on_another_device_is_captured_profiled_and_trained_without_a_tensor_on_the_cpu():
    run = subprocess.run([sys.executable, "-m", "tests.support.other_device"], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.splitlines()[-1] == "done"
