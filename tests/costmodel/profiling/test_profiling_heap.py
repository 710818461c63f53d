"""Freed memory stays with the process, so that a second step meets no page faults."""

import ctypes
import subprocess
import sys

import pytest

STEPS = """
import ctypes, resource, sys, torch
from costmodel.capture.heap import keep_freed_memory

ctypes.CDLL(None).mallopt(-1, 128 * 2**10)  # glibc's threshold, which it may have raised by now
if sys.argv[1] == "keep":
    keep_freed_memory()
for step in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(6 * 2**20) for _ in range(10)]  # a step's activations: 240 MiB
    while held:
        held.pop()  # as a backward does, the last first
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    run = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="only glibc can be told to keep freed memory; elsewhere Penstock leaves the heap alone",
)
def test_a_step_that_follows_another_of_its_size_faults_no_pages_in() -> None:
    pages = 240 * 2**20 // 4096
    assert faults("leave") > pages / 2  # what happens otherwise: the whole step anew
    assert faults("keep") < pages / 10
