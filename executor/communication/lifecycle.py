"""One rank's part in its pipeline's groups, from the first collective to the last, and how it leaves them.

What all ranks do together is under the watch. A rank leaves with all others, as agreed; one that fails tells them, and
its process may go on, but not through the interpreter's own end. Leaves out what is done together.
"""

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from costmodel.errors import UsageError
from executor.communication.groups import ProcessGroups, RefusedAlike


class GroupLifecycle:
    """The groups of a rank while they are in use.

    Parameters
    ----------
    groups : ProcessGroups
    disconnect : callable
        Gives up all that refers to the groups.

    Attributes
    ----------
    ended : str
        Why no more can be done together; empty while it can.
    at_end : callable
        What this process does then, whether or not the others are there.
    """

    def __init__(self, groups: ProcessGroups, disconnect: Callable[[], None]) -> None:
        self._groups, self._disconnect = groups, disconnect
        self.ended = ""
        self.at_end: Callable[[], object] = lambda: None
        atexit.register(self._at_exit)

    def check(self) -> None:
        """Refuse to go on once the ranks have parted.

        Raises
        ------
        UsageError
        """
        if self.ended:
            raise UsageError(self.ended)

    @contextmanager
    def together(self, what: str, patience: int = 1, *, survives: bool = False) -> Iterator[None]:
        """Do something that takes all ranks, under the watch; an error in it ends the pipeline on all of them.

        Where it `survives`, what all ranks refuse alike ends nothing.
        """
        self.check()
        self._groups.watch.enters(what, patience)
        try:
            yield
        except BaseException as error:
            if survives and isinstance(error, RefusedAlike):  # all ranks are here, and may go on together
                self._groups.watch.rests()
            else:
                self.fail(error)
            raise
        self._groups.watch.rests()

    def close(self) -> None:
        """Leave together with all other ranks, once; collective."""
        if self.ended:
            return
        with self.together("the end"):
            self._groups.all_gather_bytes(b"")
        self.ended = "the pipeline is closed; make a new one"
        self.at_end()
        self._leave()

    def fail(self, error: BaseException, *, listens: bool = True) -> None:
        """Leave with all others where all refuse alike, else tell them that this rank cannot go on.

        One that `listens` first waits for news of a lost rank, which may be the reason.
        """
        self.ended = f"the pipeline has failed ({type(error).__name__}: {error}); make a new one in a new process"
        self.at_end()
        if getattr(error, "alike", False):
            self._groups.all_gather_bytes(b"")
            self._leave()
            return
        if listens and isinstance(error, RuntimeError) and self._groups.size > 1:
            self._groups.watch.listen()
        exit_code = getattr(error, "exit_code", 1)
        atexit.unregister(self._at_exit)
        self._groups.watch.close(exit_code, f"{type(error).__name__}: {error}".split("\n")[0])
        if self._groups.size > 1:
            atexit.register(_end_process, exit_code)

    def _leave(self) -> None:
        """Leave as agreed with all other ranks, with no thread of the groups left behind."""
        atexit.unregister(self._at_exit)
        self._disconnect()
        self._groups.end()
        self._groups.watch.close()

    def _at_exit(self) -> None:
        """Leave what nobody has left, while the interpreter is whole: with all others, or as one that they lose."""
        if not isinstance(getattr(sys, "last_value", None), RefusedAlike | None):  # an error ends the program
            self._groups.watch.close(1, "an error ended its program")
            _end_process(1)
        self._groups.watch.enters("the end")
        self._groups.all_gather_bytes(b"")
        self._disconnect()
        self._groups.end()


def _end_process(exit_code: int) -> None:
    """End this process as it is, once its output is written.

    Collectives of the step that failed may be on their way to ranks that no longer take part: torch can neither take
    them back nor join the threads that wait in them, and the interpreter's end does not survive these threads.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)
