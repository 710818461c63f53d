"""What every planner comes to, and how long it may take for that.

Leaves out how it is found, and the plan that is made of it (`planner.search.planners`).
"""

from dataclasses import dataclass

from planner.ask.problem import Problem
from planner.search.incumbent import Incumbent
from planner.search.setting import Setting

SEARCH_PART = 0.92
"""Part of the time limit after which the search ends; the rest is for the plan, its ladder, its check and its file."""
PATIENCE = 10
"""With a deterministic limit the clock ends a search only after this many time limits."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    Attributes
    ----------
    setting : Setting
    incumbent : Incumbent
    lower_bound_ns : int or None
    baselines : dict of str to int
    limited_by : str
        ``proved`` when nothing was left to search.
    impossible : bool
        Whether it is proved that nothing in scope fits into memory.
    estimate : tuple of (int, int), optional
        Of the best plan's family: the least m - 1 times the largest stage plus the longest path, and its bound.
    looped_bound_ns : int, optional
        The bound of plans with several stages a rank, where `lower_bound_ns` leaves these out.
    """

    setting: Setting
    incumbent: Incumbent
    lower_bound_ns: int | None
    baselines: dict[str, int]
    limited_by: str
    impossible: bool
    estimate: tuple[int, int] | None = None
    looped_bound_ns: int | None = None


def clock_s(problem: Problem) -> float:
    """Return the seconds after which a search ends, so that the plan can be made within the limit."""
    effort = problem.effort
    left = max(0.0, effort.time_limit_s * SEARCH_PART - effort.spent_s)
    return left * (PATIENCE if effort.deterministic_limit is not None else 1)
