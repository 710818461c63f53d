"""How predictions of measured jobs are judged: errors, ranks, and what choosing by them would have cost.

Regret: within a group (one model, batch and number of devices) the measured time of the job that is predicted fastest,
over the best measured one. Rank correlation: Spearman's, of all jobs, or within groups where they are given. Leaves out
confidence: the rows are as few as somebody measured.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean, median

from planner.measured.predicted import Predicted
from planner.plan.fitting import FITTING

SMALLEST_GROUP = 4
"""Jobs of a group in which ranks say something."""


def judged(found: Sequence[Predicted]) -> dict[str, object]:
    """Return the figures of some predictions; None where there is nothing to judge."""
    timed = [one for one in found if not one.why_not and one.job.step_ns]
    parts = [one for one in found if not one.why_not and one.job.forward_ns]
    ran = [one for one in found if one.fits]
    held = [one for one in found if not one.why_not and one.job.peak_bytes]
    return {
        "rows": len(timed) or len(parts),
        "rows_skipped": sum(bool(one.why_not) for one in found),
        "time_mape_percent": _percent([abs(one.error) for one in timed]),
        "time_median_percent": 100 * median(abs(one.error) for one in timed) if timed else None,
        "bias_percent": _percent([one.error for one in timed]),
        "interval_coverage_percent": _percent(
            [one.interval_ns[0] <= one.job.step_ns <= one.interval_ns[1] for one in timed if one.interval_ns]
        ),
        "interval_half_width_percent": 100 * median(_half_width(one) for one in timed if one.interval_ns)
        if any(one.interval_ns for one in timed)
        else None,
        "rank_correlation": rank_correlation([(one.step_ns, one.job.step_ns) for one in timed]),
        "grouped_rank_correlation": _grouped_correlation(timed),
        "regret_percent": _percent([_regret(group) for group in groups(timed, "group", 2)]),
        "mean_row_regret_percent": mean_row_regret(timed),
        "forward_mape_percent": _percent([abs(one.forward_ns / one.job.forward_ns - 1) for one in parts]),
        "backward_mape_percent": _percent([abs(one.backward_ns / one.job.backward_ns - 1) for one in parts]),
        "memory_mape_percent": _percent([abs(one.memory_error) for one in held]),
        "memory_upper_bound_coverage_percent": _percent([one.upper_bytes >= one.job.peak_bytes for one in held]),
        "memory_upper_bound_median_percent": 100 * median(one.upper_bytes / one.job.peak_bytes - 1 for one in held)
        if held
        else None,
        "memory_upper_over_point_median_percent": 100 * median(one.upper_bytes / one.peak_bytes - 1 for one in held)
        if held
        else None,
        **{f"{word.replace('-', '_')}_percent": _percent([one.fits == word for one in ran]) for word in FITTING[1:]},
    }


def groups(found: Iterable[Predicted], key: str, least: int) -> list[list[Predicted]]:
    """Return the jobs that share `key` (``group``, ``ranked_with``), where there are at least `least` of them."""
    rows: dict[str, list[Predicted]] = {}
    for one in found:
        if getattr(one.job, key):
            rows.setdefault(getattr(one.job, key), []).append(one)
    return [row for row in rows.values() if len(row) >= least]


def _half_width(one: Predicted) -> float:
    low, high = one.interval_ns or (0, 0)
    return (high - low) / 2 / one.step_ns


def mean_row_regret(found: Sequence[Predicted]) -> float | None:
    """Return what taking any row of a group, whichever, would cost in the mean, in per cent."""
    steps = [[one.job.step_ns for one in group] for group in groups(found, "group", 2)]
    return _percent([fmean(row) / min(row) - 1 for row in steps])


def _regret(group: Sequence[Predicted]) -> float:
    chosen = min(group, key=lambda one: one.step_ns)
    return chosen.job.step_ns / min(one.job.step_ns for one in group) - 1


def _grouped_correlation(found: Sequence[Predicted]) -> float | None:
    """Pool the ranks of rates of groups: each group's own, scaled to lie between 0 and 1."""
    pairs: list[tuple[float, float]] = []
    for group in groups(found, "ranked_with", SMALLEST_GROUP):
        ranks = [
            _ranks([one.job.rate(step) for one, step in zip(group, steps, strict=True)])
            for steps in ([one.step_ns for one in group], [one.job.step_ns for one in group])
        ]
        pairs += [(a / (len(group) - 1), b / (len(group) - 1)) for a, b in zip(*ranks, strict=True)]
    return _pearson(pairs)


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's correlation; None for fewer than three pairs."""
    if len(pairs) < 3:
        return None
    left, right = zip(*pairs, strict=True)
    return _pearson(list(zip(_ranks(left), _ranks(right), strict=True)))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 0; equal values share their mean one."""
    ordered = sorted(values)
    first = {value: i for i, value in reversed(list(enumerate(ordered)))}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]


def _pearson(pairs: Sequence[tuple[float, float]]) -> float | None:
    if len(pairs) < 3:
        return None
    left, right = (fmean(column) for column in zip(*pairs, strict=True))
    covered = sum((a - left) * (b - right) for a, b in pairs)
    spread = sum((a - left) ** 2 for a, _ in pairs) * sum((b - right) ** 2 for _, b in pairs)
    return covered / spread**0.5 if spread else None


def _percent(values: Sequence[float]) -> float | None:
    return 100 * fmean(values) if values else None
