"""Constants that move so that prices meet measured steps: few, shrunk towards what was known, and bounded.

Each constant multiplies terms of the jobs' prices (`planner.measured.terms`), so that no job is priced again.
Logarithms of errors are lessened by Gauss-Newton with a quadratic pull of each constant to where it began, rows far off
counting less (Huber, 1964). Rows of one source err together: what they err in the mean is allowed for by a random
effect of the source (whitened as of Laird and Ware, 1982), so that hundreds of rows of one source do not outvote
others; in the end the versions of trainers that ran it take it over. Leaves out memory, which no constant moves.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import numpy.typing as npt

from costmodel.calibration import Calibration, bounds
from planner.measured import levers
from planner.measured.job import MeasuredJob
from planner.measured.predicted import Predictor
from planner.measured.terms import JobTerms

NOISE, SOURCE = 0.065, 0.08
"""Standard deviations, in logarithms, of a row within its source, and of a source."""
ROUTED = 2.5
"""By how much more noisy rows of models with experts are, of which the price leaves out more (routing, overlap)."""
FAR_WITHIN, FAR = 1.25, 3.0
"""Beyond which a row counts less, in units of noise: from its source's median, and from its own measured step."""
ROUNDS, LARGEST = 7, 0.5
"""How often constants move, and the longest move, in logarithms."""
IDENTIFIED = 0.9
"""A constant of a user's stays where rows leave more than this part of its spread."""

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


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


def fit(jobs: Sequence[MeasuredJob], known: Calibration, family: Callable[[MeasuredJob], str]) -> Fitted:
    """Fit constants of a user's own device and trainer to jobs with measured steps; a `family` is left out whole."""
    begun = with_own(jobs, known)
    return fit_rows(priced_rows(jobs, Predictor(begun)), begun, family)


def fit_rows(
    rows: Sequence[tuple[MeasuredJob, JobTerms]], begun: Calibration, family: Callable[[MeasuredJob], str]
) -> Fitted:
    """Fit the same to jobs whose terms are known under the constants where the fit begins."""
    if not rows:
        return Fitted({}, (), math.nan, math.nan, math.nan, 0)
    model = LeverModel(rows, levers.own, levers.OWN, sources=False)
    everything = np.arange(len(rows))
    free = model.identified(everything)
    at = model.solve(everything, free)
    families = [family(job) for job, _ in rows]
    outside: list[float] = []
    for name in dict.fromkeys(families) if len(set(families)) > 1 else ():
        mine = np.array([own == name for own in families])
        outside += model.errors(model.solve(everything[~mine], model.identified(everything[~mine])), everything[mine])
    moved = {n: _bounded(n, begun.value(n) * math.exp(at[i])) for i, n in enumerate(model.names) if free[i]}
    stayed = tuple(name for i, name in enumerate(model.names) if not free[i] and model.matters(i))
    before, after = (model.errors(where, everything) for where in (np.zeros_like(at), at))
    return Fitted(moved, stayed, _mape(before), _mape(after), _mape(outside), len(rows))


def with_own(jobs: Sequence[MeasuredJob], known: Calibration) -> Calibration:
    """Return the same constants, those of each job's trainer told as its own, so that a fit can move them."""
    own = {f"efficiency.{job.trainer}": known.of_trainer("efficiency", job.trainer) for job in jobs}
    hosts = {f"host.{job.trainer}": known.of_trainer("host", job.trainer) for job in jobs}
    others = {
        f"{what}.{job.trainer}": known.of_trainer(what, job.trainer) for job in jobs for what in ("fp8", "unfused")
    }
    return known.with_values({**own, **{name: value for name, value in hosts.items() if value}, **others})


def priced_rows(jobs: Sequence[MeasuredJob], predictor: Predictor) -> list[tuple[MeasuredJob, JobTerms]]:
    """Return the jobs with measured steps that can be priced, with their terms."""
    found = [(job, predictor.terms(job)) for job in jobs if job.step_ns]
    return [(job, terms) for job, terms in found if terms is not None]


def _mape(errors: Sequence[float]) -> float:
    return fmean(map(abs, errors)) if len(errors) else math.nan


def _bounded(name: str, value: float) -> float:
    low, high = bounds(name)
    return min(max(value, low), high)


@dataclass(frozen=True)
class _Rows:
    """Terms of all rows side by side; actions are the second axis, terms the last."""

    work: Array
    host: Array
    coupled: Array
    closing: Array
    several: Array
    measured: Array


class LeverModel:
    """Prices of rows as functions of logarithms of factors on their constants.

    Parameters
    ----------
    rows : sequence of (MeasuredJob, JobTerms)
    levers_of : function
        Constants that multiply each term of a job.
    spreads : table
        Of `levers.spread`.
    sources : bool
        Whether rows of one source err together.
    """

    def __init__(
        self,
        rows: Sequence[tuple[MeasuredJob, JobTerms]],
        levers_of: Callable[[MeasuredJob], levers.Levers],
        spreads: Sequence[tuple[str, float]],
        *,
        sources: bool,
    ) -> None:
        acting = [levers_of(job) for job, _ in rows]
        self.names = tuple(dict.fromkeys(name for row in acting for names in row.values() for name in names))
        index = {name: i for i, name in enumerate(self.names)}
        self._acts = np.zeros((len(rows), len(levers.TERMS), len(self.names)))
        for i, row in enumerate(acting):
            for k, term in enumerate(levers.TERMS):
                for name in row[term]:
                    self._acts[i, k, index[name]] += 1
        self._pull = np.array([1 / levers.spread(name, spreads) ** 2 for name in self.names])
        self._sources = np.array([job.source for job, _ in rows]) if sources else None
        self._noise = np.array([NOISE * (ROUTED if job.routes else 1) for job, _ in rows])
        self._rows = _side_by_side(rows)
        promised = np.array([terms.step_ns for _, terms in rows], dtype=float)
        self._scale = promised / self._steps(np.zeros(len(self.names)), np.arange(len(rows)))[0]

    def steps(self, at: Array, rows: Indices) -> Array:
        """Return the steps of rows, ns."""
        return np.asarray(self._scale[rows] * self._steps(at, rows)[0])

    def terms_at(self, at: Array, row: int, own: JobTerms) -> JobTerms:
        """Return the terms of a row under factors on its constants."""
        factors, several = np.exp(self._acts[row] @ at), own.several_hosts
        sent = factors[5] if several else factors[4]
        return replace(
            own,
            device=own.device * factors[:4],
            sent=own.sent * factors[4:6],
            host=own.host * factors[6],
            closing=own.closing * sent,
            messages=own.messages * sent,
            step_ns=round(float(self.steps(at, np.array([row]))[0])),
        )

    def errors(self, at: Array, rows: Indices) -> list[float]:
        """Return the relative errors of rows."""
        return list(self.steps(at, rows) / self._rows.measured[rows] - 1)

    def matters(self, lever: int) -> bool:
        """Whether any row depends on a constant at all."""
        return bool(self._steps(np.zeros(len(self.names)), np.arange(len(self._scale)))[1][:, lever].any())

    def told_by(self, rows: Indices) -> Flags:
        """Return for each constant whether it acts on some of the rows."""
        return np.asarray(self._acts[rows].any(axis=(0, 1)))

    def rows_of(self, name: str) -> list[int]:
        """Return the rows on which a constant acts."""
        if name not in self.names:
            return []
        return [int(i) for i in np.flatnonzero(self._acts[:, :, self.names.index(name)].any(axis=1))]

    def identified(self, rows: Indices) -> Flags:
        """Return which constants rows tell something of."""
        slopes = self._steps(np.zeros(len(self.names)), rows)[1]
        slopes = slopes / self._noise[rows][:, None]
        left = np.linalg.inv(slopes.T @ slopes + np.diag(self._pull))
        return np.asarray(np.sqrt(left.diagonal() * self._pull) < IDENTIFIED)

    def solve(self, rows: Indices, free: Flags | None = None) -> Array:
        """Return where constants move to meet rows; those that are not free stay.

        Where rows of one source err together, versions' constants move once more in the end, by all that is left: what
        a source errs in the mean tells nothing of trainers and devices, but all of the version that it ran.
        """
        moves = np.ones(len(self.names), bool) if free is None else free
        if self._sources is None:
            return self._moved(np.zeros(len(self.names)), moves, rows, 0.0)
        at = self._moved(np.zeros(len(self.names)), moves, rows, SOURCE / NOISE)
        versions = np.array([levers.is_of_version(name) for name in self.names])
        return self._moved(at, moves & versions, rows, 0.0)

    def _moved(self, begun: Array, moves: Flags, rows: Indices, common: float) -> Array:
        """Return where some constants move, given a source's own deviation in units of noise."""
        at, pull = begun.copy(), np.diag(self._pull)
        groups = [np.arange(len(rows))]
        if self._sources is not None:
            own = self._sources[rows]
            groups = [np.flatnonzero(own == name) for name in dict.fromkeys(own)]
        for _ in range(ROUNDS if moves.any() else 0):
            steps, slopes = self._steps(at, rows)
            off = np.log(self._scale[rows] * steps / self._rows.measured[rows])
            noise = self._noise[rows]
            left, right = _whitened(off / noise, slopes / noise[:, None], groups, common)
            normal, pulled = right.T @ right + pull, right.T @ left + self._pull * at
            step = np.linalg.solve(normal[np.ix_(moves, moves)], pulled[moves])
            at[moves] -= np.clip(step, -LARGEST, LARGEST)
        return at

    def _steps(self, at: Array, rows: Indices) -> tuple[Array, Array]:
        """Return steps, and by how much their logarithms grow with each constant's."""
        acts, known = self._acts[rows], self._rows
        factors = np.exp(acts @ at)
        work, paced = known.work[rows], known.host[rows] * factors[:, 6:7]
        device = np.einsum("iak,ik->ia", work, factors[:, :6])
        coupled, sent = known.coupled[rows][:, None], np.where(known.several[rows], factors[:, 5], factors[:, 4])
        closing = known.closing[rows] * sent
        steps = (np.maximum(device, paced) + coupled * np.minimum(device, paced)).sum(1) + closing
        of_device, of_host = (np.where((device >= paced) == first, 1.0, coupled) for first in (True, False))
        grown = np.concatenate(
            [np.einsum("ia,iak->ik", of_device, work) * factors[:, :6], (of_host * paced).sum(1)[:, None]], axis=1
        )
        grown[np.arange(len(rows)), np.where(known.several[rows], 5, 4)] += closing
        return steps, ((grown / steps[:, None])[:, None, :] @ acts)[:, 0, :]


def _side_by_side(rows: Sequence[tuple[MeasuredJob, JobTerms]]) -> _Rows:
    terms = [own for _, own in rows]
    return _Rows(
        np.stack([np.concatenate([own.device, own.sent], axis=1) for own in terms]),
        np.stack([own.host for own in terms]),
        np.array([own.coupled for own in terms]),
        np.array([own.closing + own.messages for own in terms]),
        np.array([own.several_hosts for own in terms]),
        np.array([job.step_ns for job, _ in rows], dtype=float),
    )


def _whitened(off: Array, slopes: Array, groups: Sequence[Indices], source: float) -> tuple[Array, Array]:
    """Return errors and slopes, in units of noise, what a source errs in the mean counting as one error of its own."""
    left, right = np.empty_like(off), np.empty_like(slopes)
    for own in groups:
        within = np.abs(off[own] - np.median(off[own])) if source else np.zeros(len(own))
        weights = np.minimum(1, FAR_WITHIN / np.maximum(within, 1e-9))
        weights *= np.minimum(1, FAR / np.maximum(np.abs(off[own]), 1e-9)) ** 2
        count, root = weights.sum(), np.sqrt(weights)
        common = 1 - 1 / math.sqrt(1 + count * source**2)
        left[own] = root * (off[own] - common * (weights @ off[own]) / count)
        right[own] = root[:, None] * (slopes[own] - common * (weights @ slopes[own]) / count)
    return left, right
