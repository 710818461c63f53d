"""A rank's watch never leaves it alone: what it cannot understand ends the rank instead of the watch."""

import subprocess
import sys

ALONE = """
import socket, time
from executor.communication.watch import Watchdog
ours, theirs = socket.socketpair()
ours.setblocking(False)
watch = Watchdog(0, {1: ours}, 60.0)
theirs.send(b"no sign at all\\n")
time.sleep(600)
"""


def test_a_watch_that_fails_ends_its_rank_and_says_so() -> None:
    run = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 1
    assert "rank 0: its watch has failed, which is a bug" in run.stderr
    assert "PENSTOCK_EXIT=1" in run.stderr
