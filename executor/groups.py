"""Joining torch's process groups, and leaving them before the interpreter ends.

A thread of gloo asks for the interpreter's lock when it drops a tensor that Python made, which it does a moment after
it has said that the work is complete. Is the interpreter ending by then, the thread is made to exit inside a destructor
and takes the process down: SIGABRT, "terminate called without an active exception" (torch's issues 38228 and 190489).
So these threads have to be joined before. Torch joins them when the last reference to their group goes, which
`destroy_process_group` alone does not see to. Leaves out groups that nobody has told to leave.
"""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from executor.watch import Watch

_NEVER = timedelta(days=7)
"""Waiting is the watch's business: it knows who is alive; the process group only sees silence."""


def start_processes(device: torch.device, num_ranks: int) -> bool:
    """Join the world's process group unless that has been done; whether it was done here.

    NCCL refuses two ranks on one GPU, so then gloo carries everything.
    """
    if dist.is_initialized() or num_ranks == 1:
        return False
    own_gpu = device.type == "cuda" and int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks)) <= torch.cuda.device_count()
    dist.init_process_group("cpu:gloo,cuda:nccl" if own_gpu else "gloo", timeout=_NEVER)
    dist.barrier()
    return True


class Membership:
    """One rank's part in the process groups, from the first collective to the last.

    Parameters
    ----------
    own : bool
        Whether the groups end with it; else their maker ends them.
    disconnect : callable
        Gives up all that refers to the groups.
    watch : Watch
        Told when this rank fails.
    """

    def __init__(self, own: bool, disconnect: Callable[[], None], watch: Watch) -> None:
        self._own, self._disconnect, self._watch = own, disconnect, watch
        atexit.register(self._at_exit)

    def leave(self) -> None:
        """Leave as agreed with all other ranks, with no thread of the groups left behind."""
        atexit.unregister(self._at_exit)
        self._disconnect()
        if self._own:
            dist.destroy_process_group()
        self._watch.close()

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that this one fails; the process may go on, but not through the interpreter's end."""
        exit_code = getattr(error, "exit_code", 1)
        atexit.unregister(self._at_exit)
        self._watch.close(exit_code)
        if dist.is_initialized() and dist.get_world_size() > 1:
            atexit.register(_end_process, exit_code)

    def _at_exit(self) -> None:
        """Leave what nobody has left, while the interpreter is whole; the watch sees to it that this ends."""
        if hasattr(sys, "last_value"):  # an error ends the program
            self._watch.close(1)
            _end_process(1)
        self._disconnect()
        if dist.is_initialized():
            dist.destroy_process_group()


def _end_process(exit_code: int) -> None:
    """End this process as it is, once its output is written.

    Collectives of the step that failed may be on their way to ranks that no longer take part: torch can neither take
    them back nor join the threads that wait in them, and the interpreter's end does not survive these threads.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)
