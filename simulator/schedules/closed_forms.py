"""Closed forms that several schedules share, and the conditions they hold under.

p ranks, v chunks a rank, m micro-batches, T = F + I + W, c the delay of an edge; uniform costs. The bubble
is the idle time of a rank within the step (or the span, where a row says so).
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from simulator.schedules.kind import ClosedForm, Uniform


@dataclass(frozen=True, slots=True)
class Condition:
    """When a closed form is exact, in words and as a test."""

    text: str
    holds: Callable[[Uniform], bool]


ALWAYS = Condition("c = 0", lambda u: u.p2p == 0)


def fill_and_drain(condition: Condition) -> ClosedForm:
    """Return the bubble (p - 1) (T + 2 c): the pipeline fills once and drains once."""
    return ClosedForm(
        "(p - 1) (T + 2 c)",
        condition.text,
        lambda u, _: (u.ranks - 1) * (u.work + 2 * u.p2p),
        condition.holds,
    )


def peak_all() -> ClosedForm:
    """Return the peak m: every activation is held."""
    return ClosedForm("m", "always", lambda u, _: Fraction(u.microbatches), lambda u: True)
