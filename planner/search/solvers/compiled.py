"""How kernels are compiled to machine code, and kept in their folder (`planner.search.solvers.kernel_cache`).

Leaves out which kernels there are. numba is imported where something is compiled, for that takes a third of a second.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from planner.search.solvers.kernel_cache import folder_for_kernels

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function to machine code, kept where there is a folder for it; other threads run beside it.

    Loops are written out, for array expressions take long to compile.
    """
    from numba import njit

    found = njit(error_model="numpy", nogil=True)(function)
    store = _store()
    if store and hasattr(found, "_cache"):  # else numba is told to compile nothing
        found._cache = store(function)
    return cast("F", found)


def inlined(function: F) -> F:
    """Compile a function into those that call it: a call of its own would count references to every array."""
    from numba import njit

    return cast("F", njit(error_model="numpy", forceinline=True)(function))


@cache
def _store() -> Callable[[Any], Any] | None:
    """Return numba's store of compiled functions, for the folder of the kernels; None without a folder."""
    folder = folder_for_kernels()
    return _store_in(folder) if folder else None


def _store_in(folder: Path) -> Callable[[Any], Any]:
    from numba.core.caching import CompileResultCacheImpl, FunctionCache

    class Locator:
        """Tells numba the folder, whose name is a digest of the sources; it may be read-only."""

        def __init__(self, function: Callable[..., Any]) -> None:
            self._py_file = function.__code__.co_filename

        @classmethod
        def from_function(cls, function: Callable[..., Any], _: str) -> "Locator":
            return cls(function)

        def ensure_cache_path(self) -> None:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)

        def get_cache_path(self) -> str:
            return str(folder)

        def get_source_stamp(self) -> str:
            return folder.name

        def get_disambiguator(self) -> str:
            return Path(self._py_file).parent.name

    class Files(CompileResultCacheImpl):
        _locator_classes = [Locator]  # type: ignore[list-item]  # noqa: RUF012 - numba calls its methods

    class Store(FunctionCache):
        """Compiles what cannot be read, and goes on where nothing can be written."""

        _impl_class = Files

        def load_overload(self, *which: Any) -> Any:
            try:
                return super().load_overload(*which)  # type: ignore[no-untyped-call]
            except Exception:  # a damaged file may raise anything when it is unpickled
                with suppress(OSError):
                    self.flush()  # type: ignore[no-untyped-call]
                return None

        def save_overload(self, *which: Any) -> None:
            with suppress(OSError):
                super().save_overload(*which)  # type: ignore[no-untyped-call]

    return Store
