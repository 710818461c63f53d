"""Annealing of several families: each once and briefly, then the best in rounds, the better a family the more often.

Restarts are from scratch and from the best that is known of a family in turn, two at a time where a processor is left.
Effort is counted; the clock ends rounds, and shortens the last restarts. Leaves out what a restart does
(`planner.search.proposers.annealing_run`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from planner.candidate.evaluate import Evaluated
from planner.search.budget import Deadline
from planner.search.proposers.annealing_run import AnnealingRun, can_anneal
from planner.search.solvers.annealing.readiness import Kernels
from planner.search.space.family import Family
from planner.search.state.focus import FamilySelector, is_near
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.state.record import SearchRecord, recorded

BRIEF = 0.2
"""Part of the changes of a whole restart with which a family is annealed first."""
SHORTEST = 0.1
"""The least part that the clock leaves of a restart."""
STALE = 24
"""Rounds that bring nothing better after which the clock need not end them."""
NUM_BEST = 6
"""Families that rounds may come to."""
AT_A_TIME = 2
"""Restarts at a time; as many where work is counted, whatever the machine, so that the same is found everywhere."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A family's turn: from which candidate, or from scratch, and which part of a whole restart."""

    family: Family
    known: Evaluated | None
    effort: float


class AnnealingScheduler:
    """Restarts of annealing, shared out among the families of one search.

    Parameters
    ----------
    setting : PreparedProblem
    incumbent : CandidatePool
    prospects : FamilySelector
    kernels : Kernels
    heard : function
        Called between restarts; returns whether another process of the search is at work.
    """

    def __init__(
        self,
        setting: PreparedProblem,
        incumbent: CandidatePool,
        prospects: FamilySelector,
        kernels: Kernels,
        heard: Callable[[], bool],
    ) -> None:
        self._setting, self._incumbent, self._prospects = setting, incumbent, prospects
        self._kernels, self._heard = kernels, heard
        self._counted = setting.problem.effort.deterministic_limit is not None
        self._seed = setting.problem.effort.seed
        self._seconds: dict[Family, float] = {}

    @property
    def record(self) -> SearchRecord:
        """The record of the search."""
        return self._incumbent.record

    @recorded("brief annealing", "improve")
    def briefly(self, families: Sequence[Family], limits: Deadline) -> None:
        """Anneal each family once, from scratch."""
        self._run((Turn(family, None, BRIEF) for family in families), limits)
        self._incumbent.say("annealed briefly")

    @recorded("rounds of annealing", "improve")
    def run(self, num_rounds: int, limits: Deadline) -> None:
        """Anneal families near the best: the best one every round, the second every other, the third every third.

        So many rounds where work is counted, else until the clock ends them, or `STALE` of them bring nothing.
        """
        self._run(self._turns(num_rounds if self._counted else STALE), limits)
        self._incumbent.say("annealed")

    def _turns(self, num_rounds: int) -> Iterator[Turn]:
        number, last, best = 0, num_rounds, self._incumbent.best
        while number < last:
            number += 1
            for place, (family, known) in enumerate(self._near(), 1):
                if number % place == 0:
                    yield Turn(family, known if number // place % 2 == 0 else None, 1.0)
            if not self._counted and self._incumbent.best is not best:
                last, best = number + num_rounds, self._incumbent.best

    def _near(self) -> list[tuple[Family, Evaluated]]:
        """Return the best families near the best plan that can be annealed, with what is known of them."""
        rows = list(self._prospects.best_by_family().items())
        return [row for row in rows if is_near(row[1], self._incumbent) and self._can(row[0])][:NUM_BEST]

    def _can(self, family: Family) -> bool:
        small = self._prospects.is_small(family) and can_anneal(self._setting.cuts(family))
        return small and self._prospects.is_open(family)

    def _run(self, turns: Iterable[Turn], limits: Deadline) -> None:
        """Take turns as long as the clock allows; what began first is looked at first."""
        if not self._kernels.ready(0.0):
            return
        waiting: deque[tuple[AnnealingRun, Future[None]]] = deque()
        pool = ThreadPoolExecutor(AT_A_TIME)
        try:
            for turn in turns:
                restart = self._restart(turn, limits)
                if limits.hit:
                    break
                if restart:
                    waiting.append((restart, pool.submit(restart.run)))
                if len(waiting) == AT_A_TIME or (waiting and self._is_alone):
                    self._take(*waiting.popleft(), limits)
            while waiting:
                self._take(*waiting.popleft(), limits)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def _is_alone(self) -> bool:
        """Whether one restart at a time is enough, for another process is at work."""
        return self._heard() and not self._counted

    def _restart(self, turn: Turn, limits: Deadline) -> AnnealingRun | None:
        """Return a family's restart, with as much effort as the clock allows; None where there is none."""
        if limits.expired or not self._can(turn.family):
            return None
        allowed = turn.effort
        if not self._counted:
            allowed = min(allowed, limits.remaining_s / max(self._seconds.get(turn.family, 0.0), 1e-3))
        if allowed < SHORTEST:
            limits.hit = True
            return None
        self._seed += 1
        return AnnealingRun.of(self._setting.cuts(turn.family), turn.known, self._seed, line=False, effort=allowed)

    def _take(self, restart: AnnealingRun, done: Future[None], limits: Deadline) -> None:
        with restart.cuts.dropped.candidate():
            done.result()
            restart.offer_to(self._incumbent, limits)
        self._seconds[restart.cuts.family] = restart.seconds / restart.effort
