"""How kernels are compiled to machine code, once a machine. Leaves out which there are.

numba is imported where something is compiled, for that takes a third of a second.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function to machine code, kept where numba finds a folder for it; other threads run beside it.

    Loops are written out, for array expressions take long to compile.
    """
    from numba import njit

    try:
        return cast("F", njit(cache=True, error_model="numpy", nogil=True)(function))
    except RuntimeError:
        return cast("F", njit(error_model="numpy", nogil=True)(function))


def inlined(function: F) -> F:
    """Compile a function into those that call it: a call of its own would count references to every array."""
    from numba import njit

    return cast("F", njit(error_model="numpy", forceinline=True)(function))


def keeps(folder: Path, last: str, *sources: Path) -> bool:
    """Whether a folder has the kernels that a module ``kernels`` ends with, no older than their sources.

    Older ones are deleted: they name types as they were, and cannot be read.
    """
    made = max(path.stat().st_mtime for path in (*sources, Path(__file__)))  # which says how they are compiled
    for kept in folder.glob("kernels.*.nb[ci]"):
        if kept.stat().st_mtime < made:
            with suppress(OSError):
                kept.unlink()
    return any(folder.glob(f"kernels.{last}-*.nbc"))
