"""What every planner comes to, and how long it may take for that.

Leaves out how it is found, and the plan that is made of it (`planner.search.planners`).
"""

from dataclasses import dataclass, replace

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
class SearchBound:
    """What a search proved of the step of every plan.

    Attributes
    ----------
    ns : int or None
        No plan that counts takes less; None where nothing is proved.
    looped_ns : int or None
        The bound of plans with several stages a rank, where `ns` leaves these out.
    split_backward_ns : int or None
        That of plans whose backwards are split, where it leaves these out.
    scope : str
        What `ns` ranges over where that is not the whole space, family by family.
    """

    ns: int | None = None
    looped_ns: int | None = None
    split_backward_ns: int | None = None
    scope: str = ""

    def over(self, *, looped: bool, split_backward: bool) -> "SearchBound":
        """Return the bound that ranges over these plans, too."""
        known = self
        if self.ns is not None and looped and self.looped_ns is not None:
            known = replace(known, ns=min(self.ns, self.looped_ns), looped_ns=None)
        if known.ns is not None and split_backward and known.split_backward_ns is not None:
            known = replace(known, ns=min(known.ns, known.split_backward_ns), split_backward_ns=None)
        return known

    def proves(self, step_ns: int) -> bool:
        """Whether no plan at all takes less than this one."""
        others = (self.looped_ns, self.split_backward_ns)
        return self.ns == step_ns and all(ns is None or ns >= step_ns for ns in others)


NO_BOUND = SearchBound()
"""Of a planner that proves nothing."""


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a search found.

    Attributes
    ----------
    prepared : PreparedProblem
    pool : CandidatePool
    bound : SearchBound
    baselines : dict of str to int
    limited_by : LimitedBy
        ``PROVED`` when nothing was left to search.
    impossible : bool
        Whether it is proved that nothing in scope fits into memory, or all that a planner knows was priced.
    estimate : tuple of (int, int), optional
        Of the best plan's family: the least m - 1 times the largest stage plus the longest path, and its bound.
    old_plan : WarmStartOutcome, optional
        What became of the plan that the search was to start from.
    num_seen : int
        Families that were looked at.
    """

    prepared: PreparedProblem
    pool: CandidatePool
    bound: SearchBound
    baselines: dict[str, int]
    limited_by: LimitedBy
    impossible: bool
    estimate: tuple[int, int] | None = None
    old_plan: WarmStartOutcome | None = None
    num_seen: int = 0
