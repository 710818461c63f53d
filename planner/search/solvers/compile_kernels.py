"""Compile the kernels of the search, as a step of an installation.

``python -m planner.search.solvers.compile_kernels`` does.

A search that finds none starts this module as a process of its own (`start`), which no end of the search ends: it
belongs to no terminal, holds none of the search's files, runs at the lowest priority and ends within `MOST_S`.
"""

import os
import signal
import subprocess
import sys

from planner.search.solvers.kernel_cache import folder_for_kernels, note_whole, take_lock, whole_folder

MOST_S = 120
"""Seconds after which a process that a search started ends; that of the next search goes on from there."""


def compile_all() -> None:
    """Compile the kernels that are not kept in their folder, or read them from there."""
    from planner.search.solvers import order_kernels as orders
    from planner.search.solvers.annealing import kernels as annealing  # numba takes a third of a second to import
    from planner.search.solvers.lattice import kernels as lattice

    annealing.compile_all()
    lattice.compile_all()
    orders.compile_all()


def start() -> subprocess.Popen[bytes] | None:
    """Start a process that compiles the kernels, at most one a machine at a time.

    Returns
    -------
    subprocess.Popen, optional
        What starts that process, and ends as soon as it has; None where nothing is to be done, another process
        compiles them, or no folder can keep them.
    """
    folder = None if whole_folder() else folder_for_kernels()
    try:
        lock = take_lock(folder) if folder else None
    except OSError:
        return None
    if lock is None:
        return None
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    try:
        return subprocess.Popen(  # this very interpreter and a module of ours
            [sys.executable, "-P", "-m", "planner.search.solvers.compile_kernels", "--detached"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": paths},
            cwd="/",
            pass_fds=(lock,),  # which holds the lock until that process ends
            start_new_session=True,
        )
    except OSError:
        return None
    finally:
        os.close(lock)


def _detach() -> None:
    """Leave the process that started this one, which need not wait for it, and see to an end in time."""
    if os.fork():
        os._exit(0)
    os.nice(19)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(MOST_S)


def main() -> int:
    """Compile the kernels, unless that was done; an installation waits for a search's process that does it."""
    detached = sys.argv[1:] == ["--detached"]
    if detached:
        _detach()
    folder = folder_for_kernels()
    if folder is None:
        sys.stderr.write("no cache folder can be written: set XDG_CACHE_HOME to one, or searches do without kernels\n")
        return 0
    lock = None if detached else take_lock(folder, wait=True)  # a detached process has it
    if whole_folder() is None:
        compile_all()
        note_whole(folder)
    if lock is not None:
        os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
