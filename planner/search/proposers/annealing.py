"""Annealing of several families: each once and briefly, then the best in rounds, the better a family the more often.

Restarts are from scratch and from the best that is known of a family in turn, two at a time where a processor is left.
Effort is counted; the clock ends rounds, and shortens the last restarts. Leaves out what a restart does
(`planner.search.proposers.annealing_run`).
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from planner.candidate.evaluate import Evaluated
from planner.search.proposers.annealing_run import AnnealingRun, can_anneal
from planner.search.proposers.split_backward import may_split
from planner.search.space.family import Family
from planner.search.space.open_choices import with_split_backward
from planner.search.state.focus import is_near
from planner.search.subsolver import SearchState, Subsolver

BRIEF = 0.2
"""Part of the changes of a whole restart with which a family is annealed first."""
SHORTEST = 0.1
"""The least part that the clock leaves of a restart."""
NUM_ROUNDS, STALE = 14, 24
"""Rounds where work is counted; else, rounds that bring nothing better after which the clock need not end them."""
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


class Annealing(Subsolver):
    """Restarts of annealing, two at a time; what began first is looked at first."""

    def __init__(self, state: SearchState) -> None:
        super().__init__(state)
        self._seed = state.problem.effort.seed
        self._seconds: dict[Family, float] = {}

    def steps(self) -> Generator[None]:
        """Take turns where the kernels are compiled: a piece is the end of one restart."""
        state = self.state
        if not state.kernels.ready(state.limits.remaining_s if state.counted else 0.0):
            return
        waiting: deque[tuple[AnnealingRun, Future[None]]] = deque()
        threads = ThreadPoolExecutor(AT_A_TIME)
        try:
            for turn in self.turns():
                restart = self._restart(turn)
                if restart:
                    state.kernels.load()
                    waiting.append((restart, threads.submit(restart.run)))
                if len(waiting) == AT_A_TIME or (waiting and self._is_alone):
                    self._take(*waiting.popleft())
                    yield
            while waiting:
                self._take(*waiting.popleft())
                yield
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    @abstractmethod
    def turns(self) -> Iterable[Turn]:
        """Return whose turn it is, one after the other."""

    def can(self, family: Family) -> bool:
        """Whether a family can be annealed, and may hold something better."""
        prospects = self.state.prospects
        small = prospects.is_small(family) and can_anneal(self.state.prepared.cuts(family))
        return small and prospects.is_open(family)

    @property
    def _is_alone(self) -> bool:
        """Whether one restart at a time is enough, for another process is at work."""
        return self.state.bounder.busy and not self.state.counted

    def _restart(self, turn: Turn) -> AnnealingRun | None:
        """Return a family's restart, with as much effort as the clock allows; None where there is none."""
        limits = self.state.limits
        if limits.expired or not self.can(turn.family):
            return None
        allowed = turn.effort
        if not self.state.counted:
            allowed = min(allowed, limits.remaining_s / max(self._seconds.get(turn.family, 0.0), 1e-3))
        if allowed < SHORTEST:
            return None
        self._seed += 1
        cuts = self.state.prepared.cuts(turn.family)
        return AnnealingRun.of(cuts, turn.known, self._seed, line=False, effort=allowed)

    def _take(self, restart: AnnealingRun, done: Future[None]) -> None:
        with restart.cuts.dropped.candidate():
            done.result()
            restart.offer_to(self.state.pool, self.state.limits)
        self._seconds[restart.cuts.family] = restart.seconds / restart.effort


class BriefAnnealing(Annealing):
    """Every family that may hold something better once, from scratch."""

    name = "brief annealing"

    def turns(self) -> Iterator[Turn]:
        """Yield families that were not annealed yet."""
        for family in self.families():
            if family not in self.done:
                self.state.bounds.know(family)
                if self.can(family):
                    self.done.add(family)
                    yield Turn(family, None, BRIEF)

    def families(self) -> Iterable[Family]:
        """Return the families, the most promising first."""
        return self.state.prospects.not_pruned()


class BriefSplitAnnealing(BriefAnnealing):
    """The same with split backwards."""

    name = "brief annealing of split backwards"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether backwards may be split."""
        return super().supports(state) and may_split(state)

    def families(self) -> Iterable[Family]:
        """Return the families with split backwards, the most promising first."""
        return map(with_split_backward, self.state.prospects.not_pruned())


class RoundsOfAnnealing(Annealing):
    """Families near the best: the best one every round, the second every other, the third every third."""

    name = "rounds of annealing"

    def __init__(self, state: SearchState) -> None:
        super().__init__(state)
        self._number = 0

    def turns(self) -> Iterator[Turn]:
        """Yield turns of `NUM_ROUNDS` rounds where work is counted, else until `STALE` of them bring nothing."""
        counted, pool = self.state.counted, self.state.pool
        last, best = NUM_ROUNDS if counted else self._number + STALE, pool.best
        while self._number < last:
            self._number += 1
            near = self._near()
            for place, (family, known) in enumerate(near, 1):
                if self._number % place == 0:
                    yield Turn(family, known if self._number // place % 2 == 0 else None, 1.0)
            if not near:
                return
            if not counted and pool.best is not best:
                last, best = self._number + STALE, pool.best

    def _near(self) -> list[tuple[Family, Evaluated]]:
        """Return the best families near the best plan that can be annealed, with what is known of them."""
        rows = list(self.state.prospects.best_by_family().items())
        return [row for row in rows if is_near(row[1], self.state.pool) and self.can(row[0])][:NUM_BEST]
