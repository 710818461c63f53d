"""What every planner comes to, and how long it may take for that.

Leaves out how it is found, and the plan that is made of it (`planner.search.planners`).
"""

from dataclasses import dataclass

from planner.plan.limited_by import LimitedBy
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem

PLAN, CUT, NOTHING = "plan", "cut", "nothing"
"""What of an old plan a search starts from."""


@dataclass(frozen=True, slots=True)
class WarmStartOutcome:
    """What became of an old plan.

    Attributes
    ----------
    used : str
        The start: the ``plan`` as it is, its ``cut`` alone, or ``nothing`` of it.
    why_not : str
        Why it cannot be used as it is; empty where it can.
    step_time_ns : int or None
        What it takes here; None where that is not known.
    in_space : bool
        Whether it is one of the plans that are searched, and so over which a bound ranges.
    """

    used: str
    why_not: str
    step_time_ns: int | None
    in_space: bool = True

    def to_json(self) -> dict[str, object]:
        """Return what a plan's reader is told."""
        return {"used": self.used, "why_not": self.why_not, "step_time_ns": self.step_time_ns}

    @property
    def never_above_ns(self) -> int | None:
        """The step that no answer may exceed."""
        return self.step_time_ns if self.used == PLAN else None


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a search found.

    Attributes
    ----------
    prepared : PreparedProblem
    pool : CandidatePool
    lower_bound_ns : int or None
    baselines : dict of str to int
    limited_by : LimitedBy
        ``PROVED`` when nothing was left to search.
    impossible : bool
        Whether it is proved that nothing in scope fits into memory, or all that a planner knows was priced.
    estimate : tuple of (int, int), optional
        Of the best plan's family: the least m - 1 times the largest stage plus the longest path, and its bound.
    looped_bound_ns : int, optional
        The bound of plans with several stages a rank, where `lower_bound_ns` leaves these out.
    split_bound_ns : int, optional
        That of plans whose backwards are split, where it leaves these out.
    old_plan : WarmStartOutcome, optional
        What became of the plan that the search was to start from.
    num_seen : int
        Families that were looked at.
    bound_scope : str
        What `lower_bound_ns` ranges over where that is not the whole space, family by family.
    """

    prepared: PreparedProblem
    pool: CandidatePool
    lower_bound_ns: int | None
    baselines: dict[str, int]
    limited_by: LimitedBy
    impossible: bool
    estimate: tuple[int, int] | None = None
    looped_bound_ns: int | None = None
    split_bound_ns: int | None = None
    old_plan: WarmStartOutcome | None = None
    num_seen: int = 0
    bound_scope: str = ""
