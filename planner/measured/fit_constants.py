"""Constants that move so that predictions meet measured steps: few, shrunk towards what was known, and bounded.

Each constant moves by a factor; the sum of absolute relative errors and of squared movements is lessened by weighted
least squares (Gauss-Newton, weights 1 / |error| renewed each round). A constant stays where the rows hardly depend on
it, or only together with another one: where its uncertainty hardly shrinks. Leaves out memory, which no constant moves.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from costmodel.calibration import Calibration, bounds, rate_name
from planner.measured.job import MeasuredJob
from planner.measured.predicted import Predicted, Predictor

SPREAD = 0.4
"""Standard deviation, in logarithms, that a constant may have before anything was measured."""
NOISE = 0.05
"""Of a measured step against its prediction, relative, where all constants are right."""
SHRUNK = 0.7
"""A constant is identified where rows leave less than this part of its spread."""
STEP, ROUNDS, SMALLEST, LARGEST = 0.1, 4, 0.01, 0.5
"""In logarithms: by which slopes are taken, how often constants move, errors that count alike, and the longest move."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """What a fit found.

    Attributes
    ----------
    moved : mapping of str to float
        New values.
    stayed : tuple of str
        Constants that the rows depend on and do not identify.
    before, after : float
        Mean absolute relative error of the rows.
    left_out : float
        The same, each family of rows predicted by a fit without it; NaN with fewer than two families.
    rows : int
    """

    moved: Mapping[str, float]
    stayed: tuple[str, ...]
    before: float
    after: float
    left_out: float
    rows: int


def constants_of(jobs: Iterable[MeasuredJob]) -> tuple[str, ...]:
    """Return the constants on which jobs may depend."""
    found: dict[str, None] = {}
    for job in jobs:
        found |= dict.fromkeys(rate_name(kind, job.device, job.precision) for kind in ("matmul", "attention", "memory"))
        found |= dict.fromkeys((f"host.{job.trainer}", f"scaleup.{job.device}", f"network.{job.device}"))
        found |= {f"fp8.{job.trainer}": None} if job.precision == "fp8" else {}
        found |= {f"unfused.{job.trainer}": None} if dict(job.habits).get("fused") is False else {}
    return tuple(found)


def fit(
    jobs: Sequence[MeasuredJob], known: Calibration, family: Callable[[MeasuredJob], str], names: Sequence[str] = ()
) -> Fitted:
    """Fit constants to jobs with measured steps.

    Parameters
    ----------
    family : function
        Jobs of one family are left out together.
    names : sequence of str
        Constants that may move; all on which the jobs may depend by default.
    """
    first = zip(jobs, Predictor(known).all(jobs), strict=True)
    usable = [job for job, one in first if not one.why_not and job.step_ns]
    asked = tuple(names or constants_of(usable))
    if not usable:
        return Fitted({}, asked, math.nan, math.nan, math.nan, 0)
    problem = _Sensitivities(usable, known, asked)
    at, stayed = problem.solve()
    families = [family(job) for job in usable]
    outside: list[float] = []
    for name in dict.fromkeys(families) if len(set(families)) > 1 else ():
        outside += problem.without([i for i, own in enumerate(families) if own == name], at)
    before, after = [one.error for one in Predictor(known).all(usable)], problem.errors(at)
    return Fitted(problem.values(at), stayed, _mape(before), _mape(after), _mape(outside), len(usable))


def _mape(errors: Sequence[float]) -> float:
    return fmean(map(abs, errors)) if errors else math.nan


class _Sensitivities:
    """Jobs with the constants that may move; positions are logarithms of values over where they start."""

    def __init__(self, jobs: Sequence[MeasuredJob], known: Calibration, names: Sequence[str]) -> None:
        self.jobs, self.known, self.names = jobs, known, names
        self._began = {name: known.value(name) for name in names if name not in known.values}
        self._logs: dict[tuple[float, ...], Array] = {}
        self._start = np.zeros(len(names))
        self._known_slopes: dict[tuple[float, ...], Array] = {}

    def solve(self) -> tuple[Array, tuple[str, ...]]:
        """Return where constants move that the jobs identify, and the names of those that matter and stay."""
        everything, at = range(len(self.jobs)), self._start
        free = self._identified()
        matters = np.any(self._slopes(at), axis=0)
        self._begin_with([self.names[i] for i in free])
        for _ in range(ROUNDS if free else 0):
            at = self._moved(at, self._logs_at(at), self._slopes(at), everything, free)
        return at, tuple(name for i, name in enumerate(self.names) if i not in free and matters[i])

    def without(self, rows: Sequence[int], at: Array) -> list[float]:
        """Return the errors of some jobs after a fit to the others, which begins where that to all of them ended."""
        others = [i for i in range(len(self.jobs)) if i not in rows]
        free, found = self._identified(others), at
        off, slopes = self._logs_at(at), self._slopes(at)
        for _ in range(ROUNDS if free else 0):  # errors follow the slopes: a job left out moves constants little
            found = self._moved(found, off + slopes @ (found - at), slopes, others, free)
        stays = [i for i in range(len(self.names)) if i not in free]
        found[stays] = 0.0
        values = self.values(found)
        jobs = [self.jobs[i] for i in rows]
        return [one.error for one in Predictor(self.known.with_values(values)).all(jobs)]

    def _begin_with(self, names: Sequence[str]) -> None:
        """Let constants that nobody knows begin somewhere if they are among these, else be as unknown as they were."""
        self._began = {name: value for name, value in self._began.items() if name in names}
        self._logs.clear()
        self._known_slopes.clear()

    def errors(self, at: Array) -> list[float]:
        """Return the relative errors of all jobs."""
        return [math.exp(off) - 1 for off in self._logs_at(at)]

    def values(self, at: Array) -> dict[str, float]:
        """Return the constants that are somewhere else than they were."""
        moves = zip(self.names, at, strict=True)
        return {name: self._value(name, move) for name, move in moves if move or name in self._began}

    def _moved(self, at: Array, off: Array, slopes: Array, rows: Sequence[int], free: Sequence[int]) -> Array:
        """Return the next position by one round of weighted least squares."""
        own, off = slopes[np.ix_(rows, free)], off[list(rows)]
        weights = 1 / np.maximum(np.abs(off), SMALLEST) / NOISE
        normal = own.T @ (weights[:, None] * own) + np.eye(len(free)) / SPREAD**2
        step = np.linalg.solve(normal, own.T @ (weights * off) + at[free] / SPREAD**2)
        moved = at.copy()
        moved[free] -= np.clip(step, -LARGEST, LARGEST)
        return self._bounded(moved)

    def _identified(self, rows: Sequence[int] | None = None) -> list[int]:
        """Return the constants whose spread the rows shrink, those on which they depend most first.

        One that the rows could not tell from those before it stays.
        """
        slopes = self._slopes(self._start)
        slopes = slopes if rows is None else slopes[list(rows)]
        free: list[int] = []
        for i in np.argsort(-np.linalg.norm(slopes, axis=0), kind="stable"):
            own = slopes[:, [*free, i]]
            left = np.linalg.inv(own.T @ own / NOISE**2 + np.eye(len(free) + 1) / SPREAD**2)
            if np.sqrt(left.diagonal()).max() < SHRUNK * SPREAD:
                free.append(int(i))
        return sorted(free)

    def _slopes(self, at: Array) -> Array:
        """Return by how much each job's error grows with each constant, taken anew at every other round alone."""
        if len(self._known_slopes) > 1:
            return next(reversed(self._known_slopes.values()))
        key = tuple(at)
        if key not in self._known_slopes:
            base, step = self._logs_at(at), np.eye(len(self.names)) * STEP
            self._known_slopes[key] = np.stack([(self._logs_at(at + row) - base) / STEP for row in step], axis=1)
        return self._known_slopes[key]

    def _logs_at(self, at: Array) -> Array:
        key = tuple(at)
        if key not in self._logs:
            found = Predictor(self.known.with_values(self.values(at))).all(self.jobs)
            self._logs[key] = np.array([_log_error(one) for one in found])
        return self._logs[key]

    def _value(self, name: str, move: float) -> float:
        low, high = bounds(name)
        return min(max(self.known.value(name) * math.exp(move), low), high)

    def _bounded(self, at: Array) -> Array:
        values = [self._value(name, move) for name, move in zip(self.names, at, strict=True)]
        starts = map(self.known.value, self.names)
        return np.array([math.log(value / start) for value, start in zip(values, starts, strict=True)])


def _log_error(found: Predicted) -> float:
    return math.log(found.step_ns / found.job.step_ns)
