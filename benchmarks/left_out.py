"""What `penstock fit` makes of a few rows of a source that no constant was fitted on, judged on its other rows.

    python -m benchmarks.left_out [--only RE] [--rows 5,10,20] [--draws 5]

The published constants are fitted without the source first (`benchmarks.refit`). Rows are drawn by chance, as often as
said; errors are means over draws. `estimate` is the error that the fit itself expects of other rows, `of all` that of
all rows once constants are fitted to all of them: what a few cannot better.
"""

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np

from benchmarks.refit import Refit, given_jobs
from costmodel.calibration import Calibration
from planner.measured import levers
from planner.measured.fit_constants import LeverModel, fit_rows, with_own
from planner.measured.job import MeasuredJob
from planner.measured.terms import JobTerms

FEWEST_LEFT = 5
"""Rows that judge a fit."""
Rows = Sequence[tuple[MeasuredJob, JobTerms]]


def under(fitted: Refit, source: str) -> tuple[Rows, Calibration]:
    """Return a source's rows with their terms under constants that were fitted without it, and these constants."""
    at, model = fitted.solved(source), fitted.model
    mine = [i for i, own in enumerate(fitted.sources) if own == source]
    rows = [(fitted.rows[i][0], model.terms_at(at, i, fitted.rows[i][1])) for i in mine]
    return rows, with_own([job for job, _ in rows], fitted.calibration(source))


def judged(rows: Rows, known: Calibration, count: int, draws: int) -> tuple[float, float, float]:
    """Return the error of rows not drawn before and after a fit to those drawn, and the fit's own estimate."""
    found = []
    for draw in range(draws):
        drawn = set(random.Random(draw).sample(range(len(rows)), count))  # noqa: S311 - a draw, no secret
        mine, others = ([row for i, row in enumerate(rows) if (i in drawn) == is_mine] for is_mine in (True, False))
        fitted = fit_rows(mine, known, lambda job: f"{job.model} {job.space} {job.microbatch_size}")
        model = LeverModel(others, levers.own, levers.OWN, sources=False)
        factors = {name: value / known.value(name) for name, value in fitted.moved.items()}
        at = np.log([factors.get(name, 1.0) for name in model.names])
        everything = np.arange(len(others))
        before, after = (fmean(map(abs, model.errors(where, everything))) for where in (np.zeros_like(at), at))
        found.append((before, after, fitted.left_out))
    before, after, estimate = (100 * fmean(column) for column in zip(*found, strict=True))
    return before, after, estimate


def lines(fitted: Refit, only: str, counts: Sequence[int], draws: int) -> Iterator[str]:
    """Yield a row a source and number of rows, and how often a fit takes the error to at most 0.6."""
    ratios, offs = [], []
    yield "| source | rows drawn | others | error before | after | estimate | of all |"
    yield "|---" * 7 + "|"
    for source in dict.fromkeys(fitted.sources):
        rows, known = under(fitted, source)
        least = 100 * fit_rows(rows, known, lambda job: job.source).after
        for count in counts:
            if re.search(only, source) and len(rows) >= count + FEWEST_LEFT:
                before, after, estimate = judged(rows, known, count, draws)
                ratios.append(after / before)
                offs.append(estimate - after)
                figures = " | ".join(f"{figure:.1f}" for figure in (before, after, estimate, least))
                yield f"| {source} | {count} | {len(rows) - count} | {figures} |"
    if ratios:
        met = sum(ratio <= 0.6 for ratio in ratios)
        yield f"at most 0.6 of before in {met} of {len(ratios)}; estimate off by {fmean(offs):+.1f} points in the mean"


def main() -> None:
    """Print a line a source and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="RE", help="sources")
    parser.add_argument("--rows", default="5,10,20", metavar="N,N,...", help="how many are drawn (5,10,20)")
    parser.add_argument("--draws", type=int, default=5, help="of each number (5)")
    args = parser.parse_args()
    for line in lines(Refit(given_jobs()), args.only, tuple(map(int, args.rows.split(","))), args.draws):
        print(line, flush=True)


if __name__ == "__main__":
    main()
