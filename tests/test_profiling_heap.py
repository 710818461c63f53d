"""Freed memory stays with the process, so that a second step meets no page faults."""

import ctypes
import subprocess
import sys

import pytest

STEPS = """
import resource, sys, torch
from costmodel.profiling.heap import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
for step in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(2**18) for _ in range(40)]  # a step's activations: 40 MiB
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    run = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt to set")
def test_a_step_that_follows_another_of_its_size_faults_no_pages_in() -> None:
    assert faults("keep") < 100 < faults("leave")
