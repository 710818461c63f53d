"""Plans whose backwards are split, made of the best plans that run them whole.

What a halved step takes at least is known before its order is made: forwards lead to a stage, and it does all its
work; W may come last. Leaves out cuts made for split backwards, which annealing (`planner.search.solvers.annealing`),
the bound and local search find.
"""

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import partial

from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluated
from planner.candidate.order import WITHIN_LIMIT
from planner.search.budget import Deadline, OrderPace
from planner.search.space.family import Family
from planner.search.space.open_choices import with_split_backward
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem

MOST_ACTIONS = 150_000
"""Actions of a whole plan up to which its backwards are halved."""
MOST_TRIED = 16
"""Plans that are halved, the best first."""


def split_plans(
    prepared: PreparedProblem, pool: CandidatePool, pace: OrderPace, limits: Deadline, made: set[Hashable]
) -> Iterator[tuple[Family | None, Evaluated]]:
    """Yield plans with split backwards, each with its family, of the best whole ones first, while they may be the best.

    Those `made` already are passed over.
    """
    whole: dict[Candidate, Evaluated] = {}
    for each in sorted(pool.found.values(), key=lambda each: each.sort_key):
        known = each.candidate
        short = 0 < each.num_actions <= MOST_ACTIONS
        if short and known.schedule != WITHIN_LIMIT and not known.orders and known.num_stages > 1:
            whole.setdefault(with_split_orders(known), each)
    for candidate, each in list(whole.items())[:MOST_TRIED]:
        if limits.expired:
            return
        if candidate in made or not pace.allows(each.num_actions, limits):
            continue
        evaluator, family = prepared.evaluator(candidate.microbatch_size), prepared.family_of.get(each.candidate)
        best = pool.best
        least_ns = (prepared.dropped.bound(partial(evaluator.least_ns, candidate)) or 0) if best.fits else 0
        if not pool.runs(each) or (best.fits and least_ns >= best.step_time_ns):
            continue
        made.add(candidate)
        with pace.timed(each.num_actions):
            found = list(evaluated_split(prepared, candidate, family))
        yield from found


def evaluated_split(
    prepared: PreparedProblem, candidate: Candidate, family: Family | None
) -> Iterator[tuple[Family | None, Evaluated]]:
    """Yield the plan of a candidate with split backwards, with its family; nothing where it has no order."""
    for found in prepared.evaluated(candidate):
        if family:
            prepared.family_of[candidate] = with_split_backward(family)
        yield with_split_backward(family) if family else None, found


def with_split_orders(known: Candidate) -> Candidate:
    """Return a candidate whose backwards are split."""
    return replace(known, schedule=WITHIN_LIMIT, in_flight=())
