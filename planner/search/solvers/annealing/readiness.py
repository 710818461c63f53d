"""Whether the kernels are compiled; on a machine where they are not, another process does it while the search looks on.

That takes some 20 s of a processor, once. Leaves out what the kernels are, and where they are kept.
"""

import subprocess
import time
from typing import ClassVar, Self

from planner.search.solvers.compile_kernels import MOST_S, start
from planner.search.solvers.kernel_cache import is_compiling, whole_folder

POLL_S = 0.02
"""How often a search that waits for another process looks whether it is done."""
ENOUGH_S = 20.0
"""What a search must be willing to wait to compile kernels itself, where no other process does."""


class Kernels:
    """The compiled kernels of one search; the process that compiles them goes on when the search ends."""

    _loaded: ClassVar[bool] = False

    def __init__(self) -> None:
        self._launcher: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Start to compile, unless that was done before or another search has started it; return whether it was not."""
        if not Kernels._loaded:
            self._launcher = start()
        return self._launcher is not None

    def ready(self, wait_s: float) -> bool:
        """Return whether the kernels can be used without delay; wait first for a process that compiles them.

        Where none does, or it takes too long, this one compiles them if it may wait for `ENOUGH_S` more.
        """
        begin = time.monotonic()
        while not (Kernels._loaded or whole_folder()):
            waited_s = time.monotonic() - begin
            if waited_s >= min(wait_s, MOST_S) or not is_compiling():
                if wait_s - waited_s >= ENOUGH_S:
                    self._compile()
                return Kernels._loaded
            time.sleep(min(POLL_S, wait_s - waited_s))
        return True

    def load(self) -> None:
        """Have the kernels ready for use, if they are compiled."""
        if not Kernels._loaded and self.ready(0.0):
            self._compile()

    def _compile(self) -> None:
        from planner.search.solvers.annealing.kernels import compile_all  # numba takes a third of a second to import
        from planner.search.solvers.order_kernels import load

        compile_all()
        load()
        Kernels._loaded = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._launcher:
            self._launcher.wait()  # it ended when it had started the process
