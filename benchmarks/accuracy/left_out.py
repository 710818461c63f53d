"""All given steps, each source priced with constants that were fitted without it: dense models and others apart.

Sums up by source, so that a source counts alike however many rows it has. Leaves out peaks, which no constant moves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from benchmarks.accuracy.tables import GIVEN, read
from benchmarks.refit import Refit, intervals
from benchmarks.support.published_data import published_data
from costmodel.calibration import DENSE, ROUTED
from costmodel.errors import InvalidInput
from costmodel.files import write_text
from planner.measured.job import MeasuredJob
from planner.measured.predicted import Predicted, Predictor
from planner.measured.prediction_errors import judged

FIGURES = {
    "rows": "rows", "time_mape_percent": "error %", "time_median_percent": "median %", "bias_percent": "bias %",
    "interval_coverage_percent": "in interval %", "interval_half_width_percent": "half-width %",
    "rank_correlation": "ranks", "regret_percent": "regret %", "mean_row_regret_percent": "any %",
}  # fmt: skip
"""Figures of a source, with their titles."""
ON_PAGE = ("rows", "time_mape_percent", "bias_percent", "interval_coverage_percent", "regret_percent")
"""Those that the page shows."""


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
    yield from _table(answer, tuple(FIGURES))
    for kind in (DENSE, ROUTED):
        means: Mapping[str, object] = answer.get(kind, {})  # type: ignore[assignment]
        said = ", ".join(f"{name.removesuffix('_percent').replace('_', ' ')} {_cell(v)}" for name, v in means.items())
        yield f"{kind}: {said}"


def _table(answer: Mapping[str, object], figures: Sequence[str]) -> Iterator[str]:
    sources: Mapping[str, Mapping[str, object]] = answer["sources"]  # type: ignore[assignment]
    yield "| source | " + " | ".join(FIGURES[figure] for figure in figures) + " |"
    yield "|---" * (len(figures) + 1) + "|"
    for name, row in sources.items():
        yield f"| {name} | " + " | ".join(_cell(row[figure]) for figure in figures) + " |"


AIMS = (
    (DENSE, "time_mape_percent", "mean error over sources", 10.0),
    (DENSE, "bias_percent", "bias, either way", 4.0),
    (DENSE, "worst_source_percent", "error of the worst source", 18.0),
    (ROUTED, "time_mape_percent", "mean error over sources", 18.0),
    (DENSE, "interval_half_width_percent", "half-width of intervals, median", 20.0),
)
"""What is to hold of sources that no constant saw, at most."""
COVERAGE = (72.0, 88.0)
"""Per cent of steps that intervals are to hold."""
START, END = "<!-- prices on unseen sources: begin -->", "<!-- prices on unseen sources: end -->"


def page(answer: Mapping[str, object]) -> list[str]:
    """Return the part of docs/validation.md on prices: what holds, what misses and by how much, each source."""
    verdicts = []
    for kind, figure, words, most in AIMS:
        means: Mapping[str, float] = answer[kind]  # type: ignore[assignment]
        held = abs(means[figure]) <= most
        verdicts.append(f"| {kind} | {words} | {means[figure]:+.1f} | {most:g} | {'holds' if held else '**misses**'} |")
    for kind in (DENSE, ROUTED):
        covered = answer[kind]["interval_coverage_percent"]  # type: ignore[index]
        held = COVERAGE[0] <= covered <= COVERAGE[1]
        aim = f"{COVERAGE[0]:g} to {COVERAGE[1]:g}"
        verdicts.append(
            f"| {kind} | steps in intervals | {covered:.1f} | {aim} | {'holds' if held else '**misses**'} |"
        )
    head = ["| models | what | per cent | aim | |", "|---|---|---|---|---|"]
    return [START, "", *head, *verdicts, "", *_table(answer, ON_PAGE), "", END]


def write_page(path: Path, answer: Mapping[str, object]) -> None:
    """Write the part into a page, in place of what an earlier run wrote.

    Raises
    ------
    InvalidInput
        When the page has no place for it.
    """
    text = path.read_text()
    if START not in text or END not in text:
        raise InvalidInput(f"{path}: no place for the part on prices; it lies between {START} and {END}")
    before, after = text.partition(START)[0], text.partition(END)[2]
    write_text(path, before + "\n".join(page(answer)) + after)


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
