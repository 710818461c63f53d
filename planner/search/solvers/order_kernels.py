"""The search of orders compiled: the functions of `simulator.schedules.order_kernels` as they are, on arrays.

The plain functions give the same orders, which take longer to find: what is found never depends on whether this is
loaded. Leaves out what they do.
"""

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from planner.search.solvers.compiled import compiled
from simulator.schedules import order_kernels as plain
from simulator.schedules.order_timing import Shop


def zeros(number: int) -> Any:
    """Return a row of zeros."""
    return np.zeros(number, np.int64)


def floats(number: int) -> Any:
    """Return a row of zeros that are floating-point numbers."""
    return np.zeros(number, np.float64)


def ints(values: Sequence[int]) -> Any:
    """Return an array of whole numbers, a copy."""
    return np.array(values, np.int64)


def load() -> plain.OrderKernels:
    """Have the compiled functions used in this process; each is compiled, or read, when it is first used."""
    names: dict[str, Any] = {}
    for function in plain.KERNELS:
        names |= function.__globals__
    names |= {"zeros": compiled(zeros), "floats": compiled(floats)}
    for function in plain.KERNELS:
        names[function.__name__] = compiled(_within(function, names))
    found = plain.OrderKernels(ints, *(names[name] for name in plain.OrderKernels.__slots__[1:]))
    plain.Active.kernels = found
    return found


def _within(function: Callable[..., Any], names: dict[str, Any]) -> Callable[..., Any]:
    """Return a function that looks other functions up among some names."""
    found = FunctionType(function.__code__, names, function.__name__)
    found.__module__, found.__qualname__ = function.__module__, function.__qualname__
    return found


def compile_all() -> None:
    """Run on a step of one job, so that numba keeps what it compiles."""
    kernels = load()
    one, none, ends = ints([1]), ints([0]), ints([0, 1])
    nothing = ints([0, 0])
    shop = Shop(
        one, none, none, none, none, none, nothing, ints([]), ints([]), nothing, ints([]), ints([]), none, ends, none,
        ends, none,
    )  # fmt: skip
    kernels.time_row(shop, ints([0]), ends, kernels.timing_for(shop))
    kernels.list_row(shop, ints([0]), kernels.noisy(none, 0.0, ints([1])), ints([1]), 0, False)
    kernels.search_row(shop, ints([0]), 1, 0, ints([1]))
