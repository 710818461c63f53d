"""A process of the call: started with a log and a session of its own, waited for, and ended with all that it started.

Standard library alone.
"""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
    "TEARDOWN_CUPTI": "0", "KINETO_LOG_LEVEL": "5", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo",
}  # fmt: skip
"""One thread a process, quiet libraries, nothing from the net, and messages that stay on the machine."""


class Child:
    """A process; `state` is ``running``, ``ok``, ``exit N`` or why it was killed, `seconds` how long it ran."""

    def __init__(self, name: str, words: Sequence[str], log: Path) -> None:
        self.name, self.began, self.seconds, self.state = name, time.perf_counter(), 0.0, "running"
        with log.open("ab") as file:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                            start_new_session=True, env={**os.environ, **ENVIRONMENT})  # fmt: skip

    def ended(self) -> bool:
        """Whether it has ended, whose state and time are then known."""
        code = self.process.poll()
        if code is not None and self.state == "running":
            self.state, self.seconds = ("ok" if code == 0 else f"exit {code}"), time.perf_counter() - self.began
        return code is not None

    def wait(self, seconds: float) -> None:
        """Wait until it has ended; kill it after so long."""
        end = time.perf_counter() + seconds
        while not self.ended() and time.perf_counter() < end:
            time.sleep(0.02)
        self.kill(f"killed after {seconds:.0f} s")

    def kill(self, why: str) -> None:
        """End it and what it has started, unless it has ended."""
        if self.ended():
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self.process.pid, number)
                self.process.wait(3)
                break
        self.state, self.seconds = why, time.perf_counter() - self.began
