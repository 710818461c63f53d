"""What ended a search, in the words that plans and ``plan --json`` have for it, and in those that people read.

Leaves out the limits themselves (`planner.search.budget`).
"""

from enum import StrEnum


class LimitedBy(StrEnum):
    """What ended a search, as `limited_by` of plans and of ``plan --json`` says it."""

    PROVED = "proved"
    EXHAUSTED = "exhausted"
    WORK_LIMIT = "work limit"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"
    SOLVER_LOST = "solver lost"
    BROKEN_BOUND = "broken bound"


WORDS: dict[str, str] = {
    LimitedBy.PROVED: "a proof that no plan in its scope is better",
    LimitedBy.EXHAUSTED: "having tried all that it knows to try",
    LimitedBy.WORK_LIMIT: "its limit of work",
    LimitedBy.TIME_LIMIT: "its time limit",
    LimitedBy.INTERRUPTED: "an interrupt",
    LimitedBy.SOLVER_LOST: "the loss of its solver",
    LimitedBy.BROKEN_BOUND: "a lower bound above the plan, which is a bug of Penstock's",
}
"""What people read of each."""
