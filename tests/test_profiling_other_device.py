"""Profiler and stages put every tensor where the model is: nothing is left on the CPU by mistake."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch.utils.backend_registration as registration


@pytest.mark.skipif(
    not hasattr(registration, "_setup_privateuseone_for_python_backend"), reason="this torch makes up no devices"
)
def test_a_model_on_another_device_is_captured_profiled_and_trained_without_a_tensor_on_the_cpu():
    root = Path(__file__).parent.parent
    run = subprocess.run([sys.executable, "-m", "tests.other_device"], capture_output=True, text=True, cwd=root)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.splitlines()[-1] == "done"
