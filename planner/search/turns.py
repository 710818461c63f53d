"""Whose turn it is: the subsolver that is expected to bring most in a second, by what it was measured to bring.

A subsolver is worth what one like it brought per second over a whole benchmark (`python -m benchmarks.portfolio`), as
if it had been seen to bring that before the search, and what it brought since: its rate is `(G + g) / (S + s)`, with
gains G, g as logarithms of steps before and after, and seconds S, s. While it brings nothing its rate falls, until
another's is higher. Where work is counted a piece takes the seconds that such pieces were measured to take, and some
for each action that it simulates, whatever it takes here, so that the same is found everywhere. Parts that prove get a
fixed share of the time beside those that improve, and all that these leave. Leaves out what subsolvers do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log
from time import perf_counter, process_time

from planner.search.budget import Deadline
from planner.search.subsolver import SearchState, Subsolver

PROVE_SHARE = 0.15
"""The least part of the time for parts that prove, once a plan fits."""
FIRST_FIT = 1.0
"""What the first plan that fits counts as a gain: as much as one that takes 37 % of the step before it."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What a subsolver was measured to bring.

    Attributes
    ----------
    gain : float
        Mean logarithm of the best step before its turns by that after them.
    seconds : float
        CPU seconds over which it brought that, s.
    piece_s : float
        CPU seconds of one piece, but for what it simulates, s.
    """

    gain: float
    seconds: float
    piece_s: float


@dataclass(slots=True)
class Turns:
    """What one subsolver took and brought in this search.

    Attributes
    ----------
    gain : float
        Logarithm of the best step before its turns by that after them.
    seconds : float
        Of its pieces, s: as they were measured before where work is counted.
    pieces : int
    spent_s, spent_until_gain_s : float
        CPU seconds of this process, all, and up to the last gain.
    seen : int
        Version of the candidates for which nothing is left to do.
    """

    solver: Subsolver
    prior: Prior
    gain: float = 0.0
    seconds: float = 0.0
    pieces: int = 0
    spent_s: float = 0.0
    spent_until_gain_s: float = 0.0
    seen: int = -1

    @property
    def rate(self) -> float:
        """What it is expected to bring per second."""
        return (self.prior.gain + self.gain) / (self.prior.seconds + self.seconds)

    def until(self, rate: float) -> float:
        """Return the seconds until its rate falls to another's if it brings nothing, one piece at least, s."""
        total = self.prior.seconds + self.seconds
        return max(self.prior.piece_s, (self.prior.gain + self.gain) / rate - total if rate else total)


class Scheduler:
    """Gives turns to the subsolvers of one search.

    Parameters
    ----------
    state : SearchState
    rows : sequence of (type of Subsolver, Prior)
    between : function
        Called between turns.
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
        self.rows = [Turns(solver(state), prior) for solver, prior in rows if solver.supports(state)]
        self._seconds = self._proving_s = 0.0

    def run(self, until: Deadline) -> None:
        """Give turns until a time, until all is proved, or nothing is left to do."""
        while not until.expired and self._seconds < self._most_s and (chosen := self._next()):
            self._give(*chosen, until)
            self._between()

    def close(self) -> None:
        """End what was left in the middle."""
        for row in self.rows:
            row.solver.close()

    def _next(self) -> tuple[Turns, float] | None:
        """Return who is next, and for how many seconds; none where nothing is left to do."""
        state = self._state
        open_ones = [row for row in self.rows if row.seen != state.incumbent.version]
        making = [row for row in open_ones if row.solver.kind == "first"]
        proving = [row for row in open_ones if row.solver.kind == "prove"]
        if not state.has_plan() and making:
            proposing = making
        else:
            proposing = [row for row in open_ones if row.solver.kind != "prove"]
            if proving and (self._spare_s < 0 or not proposing):
                return proving[0], max(proving[0].prior.piece_s, -PROVE_SHARE * self._spare_s)
        if not proposing:
            return None
        best, *others = sorted(proposing, key=lambda row: -row.rate)  # of equals the first in the table
        seconds = best.until(others[0].rate if others else 0.0)
        return best, min(seconds, max(best.prior.piece_s, self._spare_s)) if proving else seconds

    @property
    def _spare_s(self) -> float:
        """Seconds until parts that prove have had less than their share."""
        return self._proving_s / PROVE_SHARE - self._seconds

    def _give(self, row: Turns, seconds: float, until: Deadline) -> None:
        """Let a subsolver do pieces for so long, as long as there is something to do."""
        state, solver, spent_s = self._state, row.solver, 0.0
        solver.slice.restart(until.remaining_s if state.counted else min(seconds, until.remaining_s))
        while not until.expired:
            version, best_ns, work_s = state.incumbent.version, self._best_ns, state.setting.work_s
            start, start_cpu = perf_counter(), process_time()
            goes_on = False
            with state.record.active(solver.name, solver.kind), state.setting.dropped.candidate():
                goes_on = solver.step()
            counted_s = row.prior.piece_s + state.setting.work_s - work_s
            piece_s = counted_s if state.counted else perf_counter() - start
            spent_s += piece_s
            row.seconds += piece_s
            row.pieces += 1
            row.spent_s += process_time() - start_cpu
            self._seconds += piece_s
            self._proving_s += piece_s * (solver.kind == "prove")
            gained = self._gained(best_ns)
            if gained:
                row.gain += gained
                row.spent_until_gain_s = row.spent_s
            if not goes_on:
                row.seen = version
                break
            if gained or spent_s >= seconds or self._seconds >= self._most_s:
                break
        if state.incumbent.found:
            state.incumbent.say(solver.name)

    @property
    def _best_ns(self) -> int:
        incumbent = self._state.incumbent
        return incumbent.best.step_time_ns if incumbent.best_fits else 0

    def _gained(self, before_ns: int) -> float:
        now_ns = self._best_ns
        if not now_ns or now_ns == before_ns:
            return 0.0
        return max(0.0, log(before_ns / now_ns)) if before_ns else FIRST_FIT
