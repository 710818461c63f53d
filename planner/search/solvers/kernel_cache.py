"""Where compiled kernels are kept: a folder for each state of their sources, Python, numba and processor.

It lies in the user's cache or, where that cannot be written, next to this package. A file in it (`WHOLE`), written
when all kernels are compiled, lists their sizes; a lock file says whether a process compiles them. The operating
system releases the lock when its holder ends, however that happens. Leaves out what is compiled
(`planner.search.solvers.compiled`).
"""

import fcntl
import json
import os
import platform
import shutil
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from planner.search.space.cache_folder import cache_folder, can_write

PACKAGES = Path(__file__).parents[3]
SOLVERS = "planner/search/solvers"
SOURCES = (
    f"{SOLVERS}/compiled.py", f"{SOLVERS}/annealing/data.py", f"{SOLVERS}/annealing/kernels.py",
    f"{SOLVERS}/lattice/graph.py", f"{SOLVERS}/lattice/kernels.py", f"{SOLVERS}/order_kernels.py",
    *(f"simulator/schedules/order_{name}.py" for name in ("timing", "list", "moves", "kernels")),
)  # fmt: skip
"""What compiled kernels are made of, in the folder of the packages."""
WHOLE, LOCK = "whole.json", "lock"
MOST_FOLDERS = 16
"""Folders that are kept, the newest ones."""


def whole_folder() -> Path | None:
    """Return the folder that has all kernels; None where none has."""
    return next(filter(_is_whole, _folders()), None)


def folder_for_kernels() -> Path | None:
    """Return the folder that has all kernels, else the first that can be written; None where there is neither."""
    return whole_folder() or next(filter(can_write, _folders()), None)


def note_whole(folder: Path) -> None:
    """Note that all kernels are in a folder now, and delete the folders that were not written to for longest.

    Raises
    ------
    OSError
        Where the folder can no longer be written.
    """
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.nbc")}
    new = folder / f"{WHOLE}.{os.getpid()}"
    new.write_text(json.dumps(sizes))
    new.replace(folder / WHOLE)
    with suppress(OSError):
        others = sorted(folder.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in others[MOST_FOLDERS:]:
            shutil.rmtree(old, ignore_errors=True)


def take_lock(folder: Path, *, wait: bool = False) -> int | None:
    """Return a descriptor that holds the lock of a folder as long as it is open anywhere; None where another has it.

    Raises
    ------
    OSError
        Where a folder cannot be locked.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_compiling() -> bool:
    """Whether a process compiles the kernels."""
    return any(_is_locked(folder) for folder in _folders())


def _folders() -> list[Path]:
    """Return where kernels of this state may be kept, in the order in which folders are tried."""
    beside = Path(__file__).parent / "__pycache__" / "kernels"
    found = [place / _state() for place in (cache_folder("kernels"), beside) if place]
    return list(filter(_is_trusted, found))


def _is_locked(folder: Path) -> bool:
    try:
        descriptor = take_lock(folder)
    except OSError:
        return False
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def _is_trusted(folder: Path) -> bool:
    """Whether nobody but this user, or the system's, can write to a folder, if it is there: its files are run."""
    try:
        stat = folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return stat.st_uid in (0, os.geteuid()) and not stat.st_mode & 0o022


def _is_whole(folder: Path) -> bool:
    """Whether all kernels are in a folder, as long as they were."""
    try:
        sizes = json.loads((folder / WHOLE).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


@cache
def _state() -> str:
    """Return a digest of all that compiled kernels depend on."""
    found = sha256()
    for name in SOURCES:
        found.update((PACKAGES / name).read_bytes())
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    parts = (sys.implementation.cache_tag, sys.platform, _processor(), version("numba"), version("llvmlite"), *settings)
    found.update("\n".join(map(str, parts)).encode())
    return found.hexdigest()[:32]


def _processor() -> str:
    """Return what the processor is and can do: kernels are compiled for it."""
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        named = ("model name", "flags", "Features", "CPU part")
        return "\n".join(line for line in first.splitlines() if line.startswith(named))
    return f"{platform.machine()} {platform.processor()}"
