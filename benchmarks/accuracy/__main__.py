"""Predictions held against steps and peaks that others measured and published, by source.

    python -m benchmarks.accuracy ../shared/data/published/validation_vtrain_multi.csv
    python -m benchmarks.accuracy TABLE.csv --json
    python -m benchmarks.accuracy
    python -m benchmarks.accuracy --left-out --page docs/validation.md

Each row becomes a problem with every choice fixed, priced and simulated as `penstock plan` does; its step time, the
peak of its fullest rank and the upper bound on that are compared. Errors are (predicted - measured) / measured.
Regret: the measured time of the configuration that we would have chosen of one model, batch and number of devices over
the best measured one. Rows that cannot be predicted are counted and listed with the reason; below 90 % coverage the
errors of a source do not count. Without a table all given ones are read. With --left-out each source is priced with
constants that were fitted without it (`benchmarks.refit`), dense models and those with experts apart.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.accuracy.tables import GIVEN, Row, read
from benchmarks.peer_problems.aceso.job import AcesoJob, AcesoPredictor
from benchmarks.support.published_data import published_data
from costmodel.calibration import Calibration, read_calibration
from costmodel.errors import PenstockError
from planner.measured.job import MeasuredJob
from planner.measured.predicted import Predicted, Predictor
from planner.measured.prediction_errors import judged

NUM_WORST = 5
LEAST_COVERAGE = 0.9
COLUMNS = {
    "rows": "rows", "rows_skipped": "skipped", "time_mape_percent": "error %",
    "time_median_percent": "median %", "bias_percent": "bias %", "interval_coverage_percent": "in interval %",
    "interval_half_width_percent": "half-width %",
    "rank_correlation": "ranks", "grouped_rank_correlation": "in groups", "regret_percent": "regret %",
    "mean_row_regret_percent": "any row %",
    "forward_mape_percent": "F %", "backward_mape_percent": "B %", "memory_mape_percent": "memory %",
    "memory_upper_bound_coverage_percent": "below upper %",
    "memory_upper_bound_median_percent": "upper by %", "memory_upper_over_point_median_percent": "over point %",
    "may_not_fit_percent": "may not fit %", "does_not_fit_percent": "does not %",
}  # fmt: skip


def predicted(
    rows: Sequence[Row], every: int = 1, calibration: Calibration | None = None
) -> list[tuple[Row, Predicted | None]]:
    """Predict each row, or each so manieth; those without a job have none."""
    predictor, aceso = Predictor(calibration), AcesoPredictor()

    def one(job: MeasuredJob | AcesoJob | None) -> Predicted | None:
        return aceso.of(job) if isinstance(job, AcesoJob) else predictor.all([job])[0] if job else None

    return [(row, one(row.job)) for row in rows[::every]]


def summary(found: Sequence[tuple[Row, Predicted | None]]) -> dict[str, object]:
    """Return the figures over all rows, and by source."""
    sources = list(dict.fromkeys(source for row, _ in found for source in row.sources))
    by_source = {name: _figures([pair for pair in found if name in pair[0].sources]) for name in sources}
    return {**_figures(found), "sources": by_source, "skipped": [*_skipped(found)], "worst": [*_worst(found)]}


def _figures(found: Sequence[tuple[Row, Predicted | None]]) -> dict[str, object]:
    figures = judged([one for _, one in found if one])
    unread = sum(one is None for _, one in found)
    skipped = unread + int(str(figures["rows_skipped"]))
    return {**figures, "rows_skipped": skipped, "counts": skipped <= (1 - LEAST_COVERAGE) * len(found)}


def _skipped(found: Sequence[tuple[Row, Predicted | None]]) -> Iterator[dict[str, str]]:
    for row, one in found:
        why = one.why_not if one else row.why_not
        if why:
            yield {"source": row.sources[0], "row": row.name, "why": why}


def _worst(found: Sequence[tuple[Row, Predicted | None]]) -> Iterator[dict[str, object]]:
    timed = [(row, one) for row, one in found if one and not one.why_not and one.job.step_ns]
    for row, one in sorted(timed, key=lambda pair: -abs(pair[1].error))[:NUM_WORST]:
        yield {
            "source": row.sources[0], "row": row.name, "measured_ns": one.job.step_ns, "predicted_ns": one.step_ns,
            "error_percent": 100 * one.error,
        }  # fmt: skip


def main() -> None:
    """Print the figures of a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE.csv", help="(default: all that are given)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of each table only every N-th row")
    parser.add_argument("--calibration", type=Path, metavar="F", help="constants from penstock fit")
    parser.add_argument("--left-out", action="store_true", help="leave each source out of the constants in turn")
    parser.add_argument("--page", type=Path, metavar="docs/validation.md", help="write what --left-out finds into it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.left_out:
        from benchmarks.accuracy.left_out import left_out, lines, write_page
        from benchmarks.refit import Refit, given_jobs

        answer = left_out(Refit(given_jobs()))
        for line in [json.dumps(answer)] if args.json else lines(answer):
            print(line)
        if args.page:
            write_page(args.page, answer)
        return
    try:
        known = read_calibration(args.calibration) if args.calibration else None
        found = [
            pair
            for table in args.tables or map(published_data, GIVEN)
            for pair in predicted(read(table), args.every, known)
        ]
    except PenstockError as error:
        parser.exit(error.exit_code, f"{error}\n")
    figures = summary(found)
    if args.json:
        print(json.dumps(figures))
        return
    for line in text(figures):
        print(line)


def text(figures: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines that people read."""
    sources: Mapping[str, Mapping[str, object]] = figures["sources"]  # type: ignore[assignment]
    yield f"{'source':<20}" + "".join(f"{title:>14}" for title in COLUMNS.values())
    for name, row in sources.items():
        marked = name if row["counts"] else f"{name} (few)"
        yield f"{marked:<20}" + "".join(f"{_cell(row[key]):>14}" for key in COLUMNS)
    worst: Sequence[Mapping[str, object]] = figures["worst"]  # type: ignore[assignment]
    for one in worst:
        yield f"worst: {one['source']}, {one['row']}: {one['error_percent']:+.1f} %"
    skipped: Sequence[Mapping[str, str]] = figures["skipped"]  # type: ignore[assignment]
    for miss in skipped:
        yield f"skipped: {miss['source']}, {miss['row']}: {miss['why']}"


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "-" if value is None else str(value)


if __name__ == "__main__":
    main()
