"""What would make a strategy better than the plan that was chosen: a larger batch, faster links, more memory.

The plans that were met of the strategy, and of the chosen one, are simulated again under the same change. Leaves out
links that were measured, and what either could gain by being cut anew: two pipelines are not compared, nor is a chosen
one under a larger batch, which would gain more by that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from costmodel.errors import PenstockError
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.question.problem import Problem
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem

FACTOR = 4
"""Times as large a batch, and times as fast links, that are tried."""
FAR = 1.5
"""Times the chosen plan's step above which nothing is tried."""
WORTH, CUT_AGAIN = 0.999, 0.97
"""Part of the chosen plan's step below which another is called faster; of that of a pipeline, which a change may cut
and halve anew."""
NEAR, NUM_PLANS = 1.1, 4
"""Times the step of a strategy's best up to which its plans are simulated, and how many of them."""
MOST_ACTIONS = 30_000
"""Actions that are simulated for one ladder."""
GIB = 2**30


class Counterfactuals:
    """The changes of one problem, under which others are held against the chosen plan."""

    def __init__(self, prepared: PreparedProblem, pool: CandidatePool, chosen: Evaluated) -> None:
        self.prepared, self.pool, self.chosen = prepared, pool, chosen
        self._left = MOST_ACTIONS
        self._evaluators: dict[tuple[int, int], Evaluator] = {}
        self._best: dict[tuple[int, str], Evaluated | None] = {}

    def under_other_conditions(self, each: Evaluated) -> str:
        """Say which change makes a strategy that fits, and is slower, faster than the chosen one."""
        recut = each.candidate.num_stages > 1 and self.chosen.candidate.num_stages > 1
        if recut or each.step_time_ns > FAR * self._step_ns:
            return ""
        for number, (text, _) in enumerate(self._changed):
            found, chosen = (self._best_of(one.strategy, number) for one in (each, self.chosen))
            worth = CUT_AGAIN if self.chosen.candidate.num_stages > 1 else WORTH
            if found and chosen and found.step_time_ns < worth * chosen.step_time_ns:
                return f"{text}: {_faster(found, chosen)}"
        return ""

    def _best_of(self, strategy: str, number: int) -> Evaluated | None:
        """Return the best under a change of what was met of a strategy; None where too much is to be simulated."""
        if (number, strategy) not in self._best:
            own = [e for e in self.pool.found.values() if e.fits and e.strategy == strategy]
            row = sorted(filter(self.pool.runs, own), key=lambda e: e.sort_key)
            near = [e for e in row if e.step_time_ns <= NEAR * row[0].step_time_ns][:NUM_PLANS]
            self._left -= sum(e.num_actions for e in near)
            again = [self._again(e, number) for e in near] if self._left >= 0 else []
            fitting = [e for e in again if e and e.fits]
            self._best[number, strategy] = min(fitting, key=lambda e: e.sort_key, default=None)
        return self._best[number, strategy]

    def with_memory(self, lacking: Sequence[Evaluated]) -> str:
        """Say how much memory would let the first of those that do not fit be faster than the chosen plan."""
        for each in lacking:
            if each.step_time_ns < WORTH * self._step_ns:
                return f"{gibibytes(each.excess_bytes)} more memory a device: {_faster(each, self.chosen)}"
        return ""

    @property
    def _step_ns(self) -> int:
        return self.chosen.step_time_ns

    def _again(self, each: Evaluated, number: int) -> Evaluated | None:
        """Simulate a candidate under a change; None where it does not go."""
        size = each.candidate.microbatch_size
        if (number, size) not in self._evaluators:
            self._evaluators[number, size] = Evaluator(self._changed[number][1], self.prepared.atoms, size)
        try:
            return self._evaluators[number, size].evaluate(each.candidate)
        except PenstockError:
            return None

    @cached_property
    def _changed(self) -> list[tuple[str, Problem]]:
        return list(_changed(self.prepared.problem, recut=self.chosen.candidate.num_stages > 1))


def _changed(problem: Problem, *, recut: bool) -> Iterator[tuple[str, Problem]]:
    """Yield what is changed, and the problem with that change; `recut`: for a larger batch the chosen plan would be."""
    batch = FACTOR * problem.global_batch
    if not recut:
        yield f"a batch of {batch}", replace(problem, global_batch=batch)
    machines = problem.machines
    if problem.num_devices == 1 or machines.links or problem.links_from == "free":
        return
    groups = (
        replace(group, bandwidth_gbs=FACTOR * group.bandwidth_gbs, shared_gbs=FACTOR * group.shared_gbs)
        for group in machines.groups
    )
    yield f"links {FACTOR} times as fast", replace(problem, cluster=replace(machines, groups=tuple(groups)))


def _faster(each: Evaluated, other: Evaluated) -> str:
    return f"{1 - each.step_time_ns / other.step_time_ns:.1%} faster then"


def gibibytes(size_bytes: int) -> str:
    """Write what is lacking for people, rounded up."""
    return f"{-(-size_bytes * 100 // GIB) / 100:.2f} GiB"
