"""The functions by which orders are timed, listed and searched, in the forms that are in use: plain or compiled.

Whoever compiles them (`planner.search.solvers.order_kernels`) puts its forms into `Active`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from simulator.schedules.order_list import admits, list_row, room_of, wake
from simulator.schedules.order_moves import (
    add_moves,
    choose,
    collect,
    estimate,
    fill_held,
    follow,
    is_allowed,
    is_taboo,
    remember,
    search_row,
    shift,
)  # fmt: skip
from simulator.schedules.order_timing import Floats, Ints, Shop, Timing, draw, noisy, rows_at, time_row, timing_for

KERNELS = (
    draw, noisy, timing_for, time_row, rows_at, room_of, admits, wake, list_row, is_allowed, estimate, follow,
    fill_held, add_moves, collect, is_taboo, shift, choose, remember, search_row,
)  # fmt: skip
"""All that is compiled, each after what it calls."""


@dataclass(frozen=True, slots=True)
class OrderKernels:
    """The forms in which these functions run.

    Attributes
    ----------
    ints : function
        Makes an array of whole numbers.
    noisy, time_row, timing_for, list_row, search_row : function
    """

    ints: Callable[[Sequence[int]], Ints]
    noisy: Callable[[Ints, float, Ints], Floats]
    time_row: Callable[[Shop, Ints, Ints, Timing], int]
    timing_for: Callable[[Shop], Timing]
    list_row: Callable[[Shop, Ints, Floats, Ints, int, bool], bool]
    search_row: Callable[[Shop, Ints, int, int, Ints], int]

    @staticmethod
    def plain() -> "OrderKernels":
        """Return the functions as they are written, for lists."""
        return OrderKernels(list, noisy, time_row, timing_for, list_row, search_row)


class Active:
    """The forms that are in use in this process: the plain ones until compiled ones are loaded."""

    kernels: ClassVar[OrderKernels] = OrderKernels.plain()
