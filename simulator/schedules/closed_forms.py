"""Closed forms that several schedules share.

p ranks, v chunks a rank, m micro-batches, T = F + I + W, c the delay of an edge, f the part of an activation
that stays from I until W; uniform costs. Bubbles are what a step (or span) takes beyond a rank's work.
"""

from collections.abc import Callable
from fractions import Fraction

from simulator.schedules.kind import ClosedForm, Uniform


def always(_: Uniform) -> bool:
    """Hold under no condition."""
    return True


def fill_and_drain(condition: str, holds: Callable[[Uniform], bool]) -> ClosedForm:
    """Return the bubble (p - 1) (T + 2 c): the pipeline fills once and drains once."""
    return ClosedForm("(p - 1) (T + 2 c)", condition, lambda u, _: (u.ranks - 1) * (u.work + 2 * u.p2p), holds)


def looped(condition: str, holds: Callable[[Uniform], bool]) -> ClosedForm:
    """Return the bubble (p - 1) T / v: fill and drain take one chunk each."""
    return ClosedForm("(p - 1) T / v", condition, lambda u, _: Fraction(u.ranks - 1, u.chunks) * u.work, holds)


def everything_held() -> ClosedForm:
    """Return the peak m: every activation is held."""
    return ClosedForm("m", "always", lambda u, _: u.microbatches, always)


def weights_are_short(u: Uniform) -> bool:
    """W <= min(F, I), and edges take no time: when zero-bubble forms hold."""
    return u.p2p == 0 and u.backward_weight <= min(u.forward, u.backward_input)


def rounds_are_whole(u: Uniform) -> bool:
    """Whether the ranks divide the micro-batches."""
    return u.microbatches % u.ranks == 0
