"""Our planner: a heuristic plan at once, then CP-SAT improves and proves, then the simplest rung is chosen.

The chain is planned first: it is the rival that must never be faster, and its partition as a graph is a
candidate. CP-SAT cuts the micro-batch sizes whose bound leaves room; the bound of all sizes is the
least of theirs. Ctrl-C, a lost solver or a deadline end the search with what it has.
"""

from dataclasses import dataclass

from planner.problem import AUTO, Problem, Report
from planner.search.cut.child import Request, findings
from planner.search.evaluate import GRAPH, LINE, Candidate, Evaluator
from planner.search.heuristic import as_graph, cut, polish, search, shake_best
from planner.search.incumbent import Incumbent
from planner.search.limits import Limits
from planner.search.setting import Setting

ESTIMATE_PART = 0.3
"""Part of the solver's limits for the estimate, where a schedule or the memory keeps few micro-batches in flight."""
DETERMINISTIC_PER_S = 0.3
"""Deterministic seconds of the solver for each second of the time limit, when none are given."""
NUM_SHAKES_BEFORE, NUM_SHAKES_AFTER = 6, 12
"""Random changes of the best plan that are improved again, before and after the solver."""
EARLY_PART = 0.45
"""Most of the time that may pass before the solver starts."""
SOLVER_PART = 0.75
"""Most of the time left that the solver may take; the rest is for improving what it found."""
CHAIN_PART = 0.25
"""Most of the time that the search for a chain may take."""
NUM_CHAINS_TRIED = 4
"""Chains whose partitions are tried as graphs."""
PATIENCE = 10
"""With a deterministic limit the clock ends a search only after this many time limits."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    Attributes
    ----------
    setting : Setting
    choice, best : Candidate
        What is returned, and the fastest.
    lower_bound_ns : int
    baselines : dict of str to int
    limited_by : str
        ``proved`` when nothing was left to search.
    impossible : bool
        Whether it is proved that nothing in scope fits into memory.
    """

    setting: Setting
    choice: Candidate
    best: Candidate
    lower_bound_ns: int
    baselines: dict[str, int]
    limited_by: str
    impossible: bool

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator of the chosen micro-batch size."""
        return self.setting.evaluators[self.choice.microbatch_size]


class Search:
    """One search, with all that it has found so far."""

    def __init__(self, problem: Problem, report: Report | None) -> None:
        self.problem, self.setting = problem, Setting(problem)
        self.limits = Limits(clock_s(problem))
        self.early = Limits(clock_s(problem) * EARLY_PART)
        self.chains = Incumbent(problem.schedules)
        self.incumbent = Incumbent(problem.schedules, report)
        self.bounds_ns: dict[int, int] = {}
        self.impossible: set[int] = set()
        self.limited_by = "work limit"

    def run(self) -> Outcome:
        """Search until the limits, or until interrupted, and choose."""
        try:
            self._run()
        except KeyboardInterrupt:
            if not self.incumbent.found:
                raise
            self.limited_by = "interrupted"
        return self._outcome()

    def _run(self) -> None:
        self.bounds_ns = dict(self.setting.closed_forms_ns)
        self._raise_bound()
        evaluators = list(self.setting.evaluators.values())
        cut(evaluators[0], GRAPH, 0, self.incumbent, self.early)  # something to keep, should Ctrl-C come soon
        self.chains = chain_search(evaluators)
        self.incumbent.offer(self.chains.found.values())
        self.incumbent.say("chain")
        for candidate in sorted(self.chains.found.values(), key=lambda c: c.rank)[:NUM_CHAINS_TRIED]:
            as_graph(self.setting.evaluators[candidate.microbatch_size], candidate.partition, self.incumbent)
        self.incumbent.say("chain as a graph")
        search(evaluators, GRAPH, self.incumbent, self.early)
        self._shake(NUM_SHAKES_BEFORE, self.problem.seed, self.early)
        self._solve()
        self._shake(NUM_SHAKES_AFTER, self.problem.seed + 1, self.limits)
        if self.limits.hit or self.early.hit:
            self.limited_by = "time limit"
        elif self._proved:
            self.limited_by = "proved"

    def _shake(self, num_shakes: int, seed: int, limits: Limits) -> None:
        if self.problem.num_stages > 1 and not self._proved:
            evaluator = self.setting.evaluators[self.incumbent.best.microbatch_size]
            shake_best(evaluator, self.incumbent, num_shakes, seed, limits)

    @property
    def _proved(self) -> bool:
        best = self.incumbent.best
        return best.fits and best.step_time_ns == self.incumbent.lower_bound_ns

    def _solve(self) -> None:
        """Let CP-SAT cut each micro-batch size that could still hold a better plan, the best one first.

        That one gets half of the work limit, the others equal parts of the rest.
        """
        if self.problem.num_stages == 1:
            return
        best = self.incumbent.best
        sizes = sorted(filter(self._open, self.setting.evaluators), key=lambda size: size != best.microbatch_size)
        shares = [0.5] + [0.5 / (len(sizes) - 1)] * (len(sizes) - 1) if len(sizes) > 1 else [1.0]
        for size, share in zip(sizes, shares, strict=False):
            if not self.limits.over and self._open(size):
                self._solve_size(size, share)

    def _open(self, size: int) -> bool:
        best = self.incumbent.best
        return not best.fits or self.bounds_ns[size] < best.step_time_ns

    def _solve_size(self, size: int, share: float) -> None:
        evaluator, data = self.setting.evaluators[size], self.setting.cut_data(size)
        known = [c for c in self.incumbent.found.values() if c.microbatch_size == size]
        hint = min(known, key=lambda c: c.rank).partition if known else ()
        work = self.problem.deterministic_limit
        if work is None:
            work = self.problem.time_limit_s * DETERMINISTIC_PER_S
        few = self.problem.schedule != AUTO or data.limit > 0
        request = Request(
            data,
            hint,
            seconds=self.limits.left_s * SOLVER_PART,
            deterministic=work * share,
            estimate_part=ESTIMATE_PART if few else 0.0,
            seed=self.problem.seed,
        )
        tried: list[Candidate] = []
        ended = False
        for finding in findings(request, self.limits):
            if finding["kind"] == "bound":
                self.bounds_ns[size] = max(self.bounds_ns[size], finding["units"] * data.unit_ns)
                self._raise_bound()
            elif finding["kind"] == "partition":
                tried += self._try(evaluator, tuple(finding["partition"]))
            else:
                ended = True
                if finding["status"] == "INFEASIBLE":
                    self.impossible.add(size)
        if not ended and not self.limits.hit:
            self.limited_by = "solver lost"
        if tried and min(tried, key=lambda c: c.rank).rank <= self.incumbent.best.rank:
            polish(evaluator, tried, self.incumbent, self.limits)

    def _try(self, evaluator: Evaluator, partition: tuple[int, ...]) -> list[Candidate]:
        tried = [evaluator.evaluate(partition, name) for name in self.problem.schedules]
        self.incumbent.offer(tried)
        self.incumbent.say("solver")
        return tried

    def _raise_bound(self) -> None:
        """Take the least bound of all micro-batch sizes; a better one of a single size need not raise it."""
        bound_ns = min(self.bounds_ns.values())
        if bound_ns > self.incumbent.lower_bound_ns:
            self.incumbent.lower_bound_ns = bound_ns
            if self.incumbent.found:
                self.incumbent.say("bound")

    def _outcome(self) -> Outcome:
        best = self.incumbent.best
        rivals = {}
        rival = self.chains.choice() if self.chains.found else None
        if rival and rival.fits:
            rivals["chain"] = rival.step_time_ns
        single = [c.step_time_ns for c in self.incumbent.found.values() if c.fits and c.num_stages == 1]
        if single:
            rivals["single"] = min(single)
        choice = self.incumbent.choice(rivals.get("chain"))
        impossible = self.impossible == set(self.setting.evaluators)
        return Outcome(self.setting, choice, best, self.incumbent.lower_bound_ns, rivals, self.limited_by, impossible)


def chain_search(evaluators: list[Evaluator], report: Report | None = None) -> Incumbent:
    """Return the best chains: the same search for the chain planner and for the rival of ours."""
    problem = evaluators[0].problem
    chains = Incumbent(problem.schedules, report)
    search(evaluators, LINE, chains, Limits(clock_s(problem) * CHAIN_PART))
    return chains


def clock_s(problem: Problem) -> float:
    """Return the seconds after which a search ends."""
    return problem.time_limit_s * (PATIENCE if problem.deterministic_limit is not None else 1)
