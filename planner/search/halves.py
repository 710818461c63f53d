"""Plans whose backwards run in two halves, made of the best plans that run them whole.

What a halved step takes at least is known before its order is made: forwards lead to a stage, and it does all its work;
W may come last. Leaves out cuts made for halves, which annealing (`planner.search.annealing`), the bound and local
search find.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from planner.ask.problem import AUTO, Problem
from planner.ask.targets import LINE_TARGETS
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluated
from planner.candidate.order import WITHIN_LIMIT
from planner.search.family import Family
from planner.search.incumbent import Incumbent
from planner.search.limits import Limits
from planner.search.setting import Setting

MOST_ACTIONS = 150_000
"""Actions of a whole plan up to which its backwards are halved."""
MOST_TRIED = 16
"""Plans that are halved, the best first."""


def seeks_halves(problem: Problem) -> bool:
    """Whether halved backwards are open: others run schedules by name, and a proof ranges over whole ones."""
    open_ones = problem.schedule == AUTO and problem.planner in ("ours", "chain") and not problem.exact
    return open_ones and problem.target not in LINE_TARGETS and problem.num_devices > 1


def halved(family: Family) -> Family:
    """Return the family of the same cuts with backwards in halves."""
    return replace(family, split=True)


@dataclass
class OrderPace:
    """What making an order takes at most for each action of the whole plan, as seen so far."""

    seconds: float = 5e-5

    def allows(self, num_actions: int, limits: Limits) -> bool:
        """Whether there is time for the order of so many actions."""
        return num_actions * self.seconds <= limits.left_s

    @contextmanager
    def timed(self, num_actions: int) -> Iterator[None]:
        """Learn from the order that is made meanwhile."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds = max(self.seconds, (time.perf_counter() - start) / num_actions)


def in_halves(
    setting: Setting, incumbent: Incumbent, pace: OrderPace, limits: Limits
) -> Iterator[tuple[Family | None, Evaluated]]:
    """Yield plans in halves, each with its family, of the best whole ones first, as far as they may beat the best."""
    whole: dict[Candidate, Evaluated] = {}
    for each in sorted(incumbent.found.values(), key=lambda each: each.rank):
        known = each.candidate
        short = 0 < each.num_actions <= MOST_ACTIONS
        if short and known.schedule != WITHIN_LIMIT and not known.orders and known.num_stages > 1:
            whole.setdefault(in_halves_of(known), each)
    for candidate, each in list(whole.items())[:MOST_TRIED]:
        if limits.over:
            return
        if not pace.allows(each.num_actions, limits):
            continue
        evaluator, family = setting.evaluator(candidate.microbatch_size), setting.family_of.get(each.candidate)
        best = incumbent.best
        least_ns = (setting.dropped.bound(partial(evaluator.least_ns, candidate)) or 0) if best.fits else 0
        if not incumbent.runs(each) or (best.fits and least_ns >= best.step_time_ns):
            continue
        with pace.timed(each.num_actions):
            made = list(made_in_halves(setting, candidate, family))
        yield from made


def made_in_halves(
    setting: Setting, candidate: Candidate, family: Family | None
) -> Iterator[tuple[Family | None, Evaluated]]:
    """Yield the plan of a candidate in halves, with its family; nothing where it has no order."""
    for found in setting.evaluated(candidate):
        if family:
            setting.family_of[candidate] = halved(family)
        yield halved(family) if family else None, found


def in_halves_of(known: Candidate) -> Candidate:
    """Return a candidate whose backwards run in halves."""
    return replace(known, schedule=WITHIN_LIMIT, in_flight=())
