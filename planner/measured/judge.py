"""Prices held against rows of measured jobs, by groups of rows that agree in some columns.

Leaves out what a fit makes of them (`planner.measured.fit_constants`).
"""

from collections.abc import Sequence

from costmodel.calibration import Calibration
from costmodel.errors import UsageError
from planner.measured.predicted import Predicted, Predictor
from planner.measured.prediction_errors import judged
from planner.measured.runs import COLUMNS, MeasuredRun

FIGURES = {
    "time_mape_percent": "time_mape_percent",
    "median_percent": "time_median_percent",
    "bias_percent": "bias_percent",
    "rank_correlation": "rank_correlation",
    "regret_percent": "regret_percent",
    "interval_coverage_percent": "interval_coverage_percent",
    "interval_half_width_percent": "interval_half_width_percent",
    "memory_mape_percent": "memory_mape_percent",
    "memory_upper_coverage_percent": "memory_upper_bound_coverage_percent",
}
"""Figures of a group, by their names in `judged`."""


def judge(runs: Sequence[MeasuredRun], calibration: Calibration, by: Sequence[str]) -> dict[str, object]:
    """Price rows and return how good that is: rows, rows_priced, skipped, and the figures of each group.

    Raises
    ------
    UsageError
        For a column that there is not.
    """
    unknown = [name for name in by if name.replace("-", "_") not in COLUMNS]
    if unknown:
        raise UsageError(f"--by {unknown[0]}: no column is called so; columns are {', '.join(COLUMNS)}")
    predictor = Predictor(calibration)
    priced: dict[str, list[Predicted]] = {}
    skipped: list[dict[str, object]] = []
    for run in runs:
        found = predictor.all([run.job])[0] if run.job else None
        why_not = found.why_not if found else run.why_not
        if found is None or why_not:
            skipped.append({"row": run.number, "reason": why_not})
            continue
        name = " / ".join(run.cells.get(column.replace("-", "_"), "") or "-" for column in by)
        priced.setdefault(name, []).append(found)
    everything = [one for row in priced.values() for one in row]
    return {
        "rows": len(runs),
        "rows_priced": len(everything),
        "skipped": skipped,
        "by": {name: _figures(row) for name, row in priced.items()},
        "all": _figures(everything),
    }


def _figures(found: Sequence[Predicted]) -> dict[str, object]:
    figures = judged(found)
    return {"rows": len(found), **{ours: figures[theirs] for ours, theirs in FIGURES.items()}}
