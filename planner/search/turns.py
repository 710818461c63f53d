"""Whose turn it is: the subsolver that is expected to bring most in a second, by what it was measured to bring.

A subsolver is worth what one like it brought per second over a whole benchmark (`python -m benchmarks.portfolio`), as
if it had been seen to bring that before the search, and what it brought since: its rate is `(G + g) / (S + s)`, with
seconds S, s and gains G, g: by how much the gap between the best step and its bound became less, as a logarithm,
whether a step fell or a bound rose. Each gain in g fades as `exp(-s / S)`. While a subsolver brings nothing its rate
falls, until another's is higher. Where work is counted a piece takes the seconds that such pieces were measured to
take, and some for each action that it simulates, whatever it takes here, so that the same is found everywhere.
Leaves out what subsolvers do.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from pathlib import Path
from time import perf_counter, process_time

from planner.search.budget import Deadline
from planner.search.subsolver import SearchState, Subsolver


@dataclass(frozen=True, slots=True)
class Prior:
    """What a subsolver was measured to bring.

    Attributes
    ----------
    gain : float
        Mean of what it took from the logarithm of the gap; 0.0003 where less was seen.
    seconds : float
        CPU seconds over which it brought that, s.
    piece_s : float
        CPU seconds of one piece, but for what it simulates, s.
    """

    gain: float
    seconds: float
    piece_s: float


PRIORS = {
    name: Prior(**row)
    for name, row in tomllib.loads((Path(__file__).parent / "state/priors.toml").read_text(encoding="utf-8")).items()
}
"""That of each subsolver, by its name."""


@dataclass(slots=True)
class TurnRecord:
    """What one subsolver took and brought in this search.

    Attributes
    ----------
    gain : float
        What it took from the logarithm of the gap.
    lately : float
        The same, each gain the less the longer its turns since took.
    seconds : float
        Of its pieces, s: as they were measured before where work is counted.
    pieces : int
    spent_s, spent_until_gain_s : float
        CPU seconds of this process, all, and up to the last gain.
    seen : int
        Version of the candidates for which nothing is left to do.
    is_broken : bool
        Whether it has raised what it should not.
    """

    solver: Subsolver
    prior: Prior
    gain: float = 0.0
    lately: float = 0.0
    seconds: float = 0.0
    pieces: int = 0
    spent_s: float = 0.0
    spent_until_gain_s: float = 0.0
    seen: int = -1
    is_broken: bool = False

    @property
    def rate(self) -> float:
        """What it is expected to bring per second."""
        return (self.prior.gain + self.lately) / (self.prior.seconds + self.seconds)

    def take(self, piece_s: float) -> None:
        """Count a piece."""
        self.pieces += 1
        self.seconds += piece_s
        self.lately *= exp(-piece_s / self.prior.seconds)

    def until(self, rate: float) -> float:
        """Return the seconds until its rate falls to another's if it brings nothing, one piece at least, s."""
        total = self.prior.seconds + self.seconds
        return max(self.prior.piece_s, (self.prior.gain + self.lately) / rate - total if rate else total)


class Scheduler:
    """Gives turns to the subsolvers of one search.

    Parameters
    ----------
    state : SearchState
    rows : sequence of (type of Subsolver, Prior)
    between : function
        Called between turns, to take what was proved meanwhile.
    most_s : float
        Seconds of all turns after which none is given.

    Attributes
    ----------
    rows : list of Turns
    """

    def __init__(
        self,
        state: SearchState,
        rows: Sequence[tuple[type[Subsolver], Prior]],
        between: Callable[[], None],
        most_s: float = inf,
    ) -> None:
        self._state, self._between, self._most_s = state, between, most_s
        self.rows = [TurnRecord(solver(state), prior) for solver, prior in rows if solver.supports(state)]
        self._seconds = 0.0

    def run(self, until: Deadline) -> None:
        """Give turns until a time and a first plan, or until nothing is left to do.

        Where the time is over before anything fits, each part that makes first plans has one turn all the same.
        """
        while not self._is_over(until) and (chosen := self._next(late=until.expired)):
            self._give(*chosen, until)
            self._between()

    def _is_over(self, until: Deadline) -> bool:
        state, expired = self._state, until.expired or self._seconds >= self._most_s
        if state.problem.exact and state.pool.found and state.bounds.proved:
            return True
        return expired and bool(state.pool.found) and (state.has_plan() or not self._untried())

    def _untried(self) -> list[TurnRecord]:
        """Return the parts that make first plans and had no turn yet."""
        return [row for row in self.rows if row.solver.kind == "first" and not row.pieces]

    def close(self) -> None:
        """End what was left in the middle."""
        for row in self.rows:
            row.solver.close()

    def _next(self, *, late: bool) -> tuple[TurnRecord, float] | None:
        """Return who is next, and for how many seconds; none where nothing is left to do."""
        state = self._state
        open_ones = [row for row in self.rows if row.seen != state.pool.version and not row.is_broken]
        making = [row for row in open_ones if row.solver.kind == "first"]
        if not state.pool.found or (making and not state.has_plan()):
            open_ones = (self._untried() if late else []) or making
        if not open_ones:
            return None
        best, *others = sorted(open_ones, key=lambda row: -row.rate)  # of equals the first in the table
        return best, best.until(others[0].rate if others else 0.0)

    def _give(self, row: TurnRecord, seconds: float, until: Deadline) -> None:
        """Let a subsolver do pieces for so long, as long as there is something to do."""
        state, solver, spent_s = self._state, row.solver, 0.0
        solver.slice.restart(until.remaining_s if state.counted else min(seconds, until.remaining_s))
        while True:
            version, best_ns, work_s = state.pool.version, self._best_ns, state.prepared.work_s
            bound_ns = self._bound_ns(solver)
            start, start_cpu = perf_counter(), process_time()
            goes_on = self._step(row)
            counted_s = row.prior.piece_s + state.prepared.work_s - work_s
            piece_s = counted_s if state.counted else perf_counter() - start
            spent_s += piece_s
            row.take(piece_s)
            row.spent_s += process_time() - start_cpu
            self._seconds += piece_s
            gained = _gained(best_ns, self._best_ns) + _gained(self._bound_ns(solver), bound_ns)
            if gained:
                row.gain += gained
                row.lately += gained
                row.spent_until_gain_s = row.spent_s
            if not goes_on:
                row.seen = version
                break
            if self._best_ns != best_ns or spent_s >= seconds or self._is_over(until):
                break  # a signal that waited for a first plan is heeded between turns
        if state.pool.found:
            state.pool.say(solver.name)

    def _step(self, row: TurnRecord) -> bool:
        """Let a subsolver do a piece; what is raised there is a bug, and costs its turns once there is a plan."""
        try:
            with self._state.record.active(row.solver.name, row.solver.kind):
                return row.solver.step()
        except Exception as error:
            if not self._state.pool.found:
                raise
            self._state.prepared.dropped.blame(error)
            row.is_broken = True
            return False

    @property
    def _best_ns(self) -> int:
        pool = self._state.pool
        return pool.best.step_time_ns if pool.best_fits else 0

    def _bound_ns(self, solver: Subsolver) -> int:
        """Return the bound that a part that proves may raise; 0 for others."""
        return self._state.bounds.known_ns if solver.kind == "prove" else 0


def _gained(high_ns: int, low_ns: int) -> float:
    """Return what a fall from one to the other brings; nothing where either is not known."""
    return max(0.0, log(high_ns / low_ns)) if high_ns and low_ns else 0.0
