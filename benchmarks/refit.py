"""Fit every constant of `costmodel/calibration/constants.toml` again on all given sources, and write the file.

    python -m benchmarks.refit -o costmodel/calibration/constants.toml

Constants are fitted together, each shrunk to its family's or trainer's (`planner.measured.levers`). Intervals are of
errors of sources that were left out in turn, by trainer and by what the prices of their devices then rested on.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.tables import GIVEN, read
from benchmarks.support.published_data import published_data
from costmodel.calibration import ANY, DENSE, ROUTED, UNKNOWN, Calibration, bounds, to_toml
from costmodel.files import write_text
from planner.measured import levers
from planner.measured.fit_constants import LeverModel, priced_rows
from planner.measured.job import MeasuredJob
from planner.measured.predicted import Predictor
from planner.measured.terms import JobTerms

EVERY = {"vTrain single-node": 8}
"""Of such a source only each so manieth row is fitted: its 720 rows are much alike."""
BEGUN = Calibration({f"{what}.{ANY}": value for what, value in UNKNOWN.items()})
"""Where published fits begin: what a host takes of a trainer of which nothing is known."""
COVERED, MOST_COVERED, FEWEST = 0.8, 0.9, 10
"""Part of left-out rows in an interval, the most of few sources that say it, and sources that make one of their own."""


Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Key = tuple[str, str, str]
"""Trainer, standing of the device, kind of model."""


@dataclass(frozen=True)
class Refit:
    """Rows that constants are fitted on, and the fit."""

    jobs: Sequence[MeasuredJob]

    @cached_property
    def rows(self) -> Sequence[tuple[MeasuredJob, JobTerms]]:
        """Jobs that can be priced, with their terms."""
        return priced_rows(self.jobs, Predictor(BEGUN))

    @cached_property
    def model(self) -> LeverModel:
        """Their prices as functions of constants."""
        return LeverModel(self.rows, levers.levels, levers.LEVELS, sources=True)

    @cached_property
    def sources(self) -> Sequence[str]:
        """The source of each row."""
        return [job.source for job, _ in self.rows]

    def solved(self, source: str = "") -> Array:
        """Return where constants move in a fit without a source; with all by default."""
        if source not in self._known:
            self._known[source] = self.model.solve(self.others(source))
        return self._known[source]

    @cached_property
    def _known(self) -> dict[str, Array]:
        return {}

    def others(self, source: str) -> Indices:
        """Return the rows that are not of a source."""
        return np.flatnonzero([own != source for own in self.sources])

    def calibration(self, source: str = "") -> Calibration:
        """Return the constants that a fit without a source finds; with all by default."""
        told = self.model.told_by(self.others(source))
        moves = zip(self.model.names, self.solved(source), told, strict=True)
        found = levers.of_levels({name: math.exp(move) for name, move, acts in moves if acts}, BEGUN)
        bounded = {name: min(max(value, bounds(name)[0]), bounds(name)[1]) for name, value in found.items()}
        return Calibration({**BEGUN.values, **bounded})

    def rows_of(self, name: str) -> list[int]:
        """Return the rows that a constant acts on."""
        return self.model.rows_of(name)


def given_jobs() -> list[MeasuredJob]:
    """Return the jobs with measured steps of all given tables, of each source as many as are fitted."""
    found: dict[str, list[MeasuredJob]] = {}
    for table in GIVEN:
        for row in read(published_data(table)):
            if isinstance(row.job, MeasuredJob) and row.job.step_ns:
                found.setdefault(row.job.source, []).append(row.job)
    return [job for source, jobs in found.items() for job in jobs[:: EVERY.get(source, 1)]]


def intervals(fitted: Refit, unseen: str = "") -> Iterator[dict[str, object]]:
    """Yield between which multiples of promised steps four of five steps of left-out sources lie, but of one unseen."""
    errors: dict[Key, dict[str, list[float]]] = {}
    for source in dict.fromkeys(own for own in fitted.sources if own != unseen):
        known, mine = fitted.calibration(source), np.flatnonzero([own == source for own in fitted.sources])
        found = fitted.model.errors(fitted.solved(source), mine)
        for i, error in zip(mine.tolist(), found, strict=True):
            job = fitted.rows[i][0]
            standing, base = known.standing(job.device), job.trainer.partition("-")[0]
            for trainer in (base, ANY):
                key = trainer, standing, ROUTED if job.routes else DENSE
                errors.setdefault(key, {}).setdefault(source, []).append(-math.log1p(error))
    for (trainer, standing, kind), own in sorted(errors.items()):
        if trainer == ANY or len(own) >= FEWEST:
            rows = own if len(own) >= FEWEST else _of_all_standings(errors, kind)
            low, high = _quantiles(rows)
            yield {
                "trainer": trainer, "standing": standing, "kind": kind, "low": _short(math.exp(low)),
                "high": _short(math.exp(high)), "rows": sum(map(len, rows.values())), "sources": len(rows),
            }  # fmt: skip


def _of_all_standings(errors: Mapping[Key, Mapping[str, Sequence[float]]], kind: str) -> dict[str, list[float]]:
    """Return the errors of any trainer's rows of a kind, whatever their devices rest on."""
    found: dict[str, list[float]] = {}
    for (trainer, _, own), rows in errors.items():
        for source, row in rows.items() if (trainer, own) == (ANY, kind) else ():
            found.setdefault(source, []).extend(row)
    return found


def _quantiles(rows: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Return the ends of the middle `COVERED` of errors; each source counts alike, however many rows it has.

    A source to come is one more than those that are known: of n of them the middle COVERED (n + 1) / n counts (as in
    conformal prediction, Vovk et al., 2005).
    """
    covered = min(MOST_COVERED, COVERED * (len(rows) + 1) / len(rows))
    pairs = sorted((error, 1 / len(own)) for own in rows.values() for error in own)
    reached = np.cumsum([weight for _, weight in pairs]) / len(rows)
    ends = np.interp([(1 - covered) / 2, (1 + covered) / 2], reached, [error for error, _ in pairs])
    return float(ends[0]), float(ends[1])


def constants(fitted: Refit) -> Iterator[dict[str, object]]:
    """Yield a row a constant, with the rows that it acts on and their error."""
    known = fitted.calibration()
    errors = [abs(error) for error in fitted.model.errors(fitted.solved(), fitted.others(""))]
    for name, value in sorted(known.values.items()):
        mine = fitted.rows_of(name)
        sources = dict.fromkeys(fitted.sources[i] for i in mine)
        yield {
            "name": name, "value": _short(value), "low": bounds(name)[0], "high": bounds(name)[1],
            "fitted_on": ", ".join(sources) or "begun with, not fitted", "rows": len(mine),
            **({"error_percent": _short(100 * fmean(errors[i] for i in mine))} if mine else {}),
        }  # fmt: skip


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    """Fit all, print what moved and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="constants.toml")
    args = parser.parse_args()
    fitted = Refit(given_jobs())
    rows, wide = list(constants(fitted)), list(intervals(fitted))
    for row in rows:
        print(f"{row['name']} {row['value']}: {row['rows']} rows of {row['fitted_on']}")
    for row in wide:
        whose = ", ".join(str(row[key]) for key in ("trainer", "standing", "kind"))
        print(f"{whose}: {row['low']} to {row['high']}, {row['sources']} sources")
    write_text(args.output, to_toml(rows, wide))


if __name__ == "__main__":
    main()
