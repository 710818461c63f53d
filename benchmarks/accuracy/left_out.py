"""All given steps, each source priced with constants that were fitted without it: dense models and others apart.

Sums up by source, so that a source counts alike however many rows it has. Leaves out peaks, which no constant moves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from benchmarks.accuracy.tables import GIVEN, read
from benchmarks.refit import Refit, intervals
from benchmarks.support.published_data import published_data
from costmodel.calibration import DENSE, ROUTED
from planner.measured.job import MeasuredJob
from planner.measured.predicted import Predicted, Predictor
from planner.measured.prediction_errors import judged

FIGURES = (
    "rows", "time_mape_percent", "time_median_percent", "bias_percent", "interval_coverage_percent",
    "interval_half_width_percent", "rank_correlation", "regret_percent", "mean_row_regret_percent",
)  # fmt: skip


def left_out(fitted: Refit) -> dict[str, object]:
    """Return the figures of each source under constants fitted without it, and their means."""
    jobs: dict[str, list[MeasuredJob]] = {}
    for table in GIVEN:
        for row in read(published_data(table)):
            if isinstance(row.job, MeasuredJob) and row.job.step_ns:
                jobs.setdefault(row.job.source, []).append(row.job)
    sources: dict[str, dict[str, object]] = {}
    means: dict[str, list[Sequence[Predicted]]] = {DENSE: [], ROUTED: []}
    for source, rows in jobs.items():
        found = _predicted(fitted, source, rows)
        for kind, of_kind in ((DENSE, False), (ROUTED, True)):
            mine = [one for one, job in zip(found, rows, strict=True) if job.routes == of_kind and not one.why_not]
            if mine:
                means[kind].append(mine)
                figures = judged(mine)
                sources[f"{source}, {kind}"] = {name: figures[name] for name in FIGURES}
    return {"sources": sources, **{kind: _means(rows) for kind, rows in means.items() if rows}}


def _predicted(fitted: Refit, source: str, rows: Sequence[MeasuredJob]) -> list[Predicted]:
    """Predict a source's rows as they would be had nobody seen it: constants and intervals are of the others."""
    known = fitted.calibration(source)
    keys = ("trainer", "standing", "kind")
    wide = [([str(row[key]) for key in keys], row) for row in intervals(fitted, source)]
    ends = {(key[0], key[1], key[2]): (float(str(row["low"])), float(str(row["high"]))) for key, row in wide}
    return Predictor(replace(known, intervals=ends)).all(rows)


def _means(sources: Sequence[Sequence[Predicted]]) -> dict[str, object]:
    """Return means over sources, each of which counts alike."""
    each = [judged(rows) for rows in sources]
    everything = [one for rows in sources for one in rows]
    return {
        "time_mape_percent": fmean(float(str(row["time_mape_percent"])) for row in each),
        "bias_percent": fmean(float(str(row["bias_percent"])) for row in each),
        "worst_source_percent": max(float(str(row["time_mape_percent"])) for row in each),
        "interval_coverage_percent": fmean(float(str(row["interval_coverage_percent"])) for row in each),
        "interval_half_width_percent": median(float(str(row["interval_half_width_percent"])) for row in each),
        "regret_percent": judged(everything)["regret_percent"],
        "sources": len(each),
    }


def lines(answer: Mapping[str, object]) -> Iterator[str]:
    """Yield a row a source, and the means."""
    sources: Mapping[str, Mapping[str, object]] = answer["sources"]  # type: ignore[assignment]
    titles = ("rows", "error %", "median %", "bias %", "in interval %", "half-width %", "ranks", "regret %", "any %")
    yield "| source | " + " | ".join(titles) + " |"
    yield "|---" * (len(titles) + 1) + "|"
    for name, row in sources.items():
        yield f"| {name} | " + " | ".join(_cell(row[figure]) for figure in FIGURES) + " |"
    for kind in (DENSE, ROUTED):
        means: Mapping[str, object] = answer.get(kind, {})  # type: ignore[assignment]
        said = ", ".join(f"{name.removesuffix('_percent').replace('_', ' ')} {_cell(v)}" for name, v in means.items())
        yield f"{kind}: {said}"


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
