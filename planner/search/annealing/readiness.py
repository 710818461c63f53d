"""Whether the kernels are compiled; on a machine where they are not, another process does it while the search looks on.

That takes seconds, once. Leaves out what the kernels are.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from planner.search.compiled import keeps


class Kernels:
    """The compiled kernels of one search; a process that still compiles them never outlives it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Start to compile, unless that was done before; return whether it was not."""
        if not _are_kept():
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            self._process = subprocess.Popen(  # this very interpreter and a module of ours
                [sys.executable, "-m", "planner.search.annealing.compile"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The number of the process while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    def ready(self, wait_s: float) -> bool:
        """Wait so long for the kernels; return whether they are there."""
        if self._process:
            try:
                self._process.wait(wait_s)
            except subprocess.TimeoutExpired:
                return False
        return True

    def load(self) -> None:
        """Have the kernels ready for use, if they are compiled."""
        if self.ready(0.0):
            from planner.search.annealing.kernels import compile_all  # numba takes a third of a second to import

            compile_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()


def _are_kept() -> bool:
    """Whether numba has kept these very kernels, or cannot keep any."""
    if "NUMBA_CACHE_DIR" not in os.environ and _keeps(Path(__file__).parent / "__pycache__"):
        return True
    from planner.search.annealing import kernels  # numba takes a third of a second to import

    folder = kernels.anneal.stats.cache_path  # type: ignore[attr-defined]  # numba's own
    return not folder or _keeps(Path(folder))


def _keeps(folder: Path) -> bool:
    here = Path(__file__).parent
    return keeps(folder, "anneal", here / "data.py", here / "kernels.py")
