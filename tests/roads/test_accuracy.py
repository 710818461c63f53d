"""Predictions held against steps that others measured: a reduced run of benchmarks.accuracy, and what judges it."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy.__main__ import predicted, summary
from benchmarks.accuracy.tables import read
from costmodel.errors import InvalidInput
from planner.measured.job import MeasuredJob
from planner.measured.predicted import Predicted, Predictor
from planner.measured.prediction_errors import judged, rank_correlation
from tests.support.published_data import folder

EVERY = {"validation_vtrain_single.csv": 60, "validation_vtrain_multi.csv": 9, "validation_tables.csv": 7}


def figures(table: str) -> dict[str, object]:
    return summary(predicted(read(folder("published", table)), EVERY[table]))


def number(figures: dict[str, object], source: str, key: str) -> float:
    found = figures["sources"][source][key]  # type: ignore[index]
    assert isinstance(found, int | float)
    return float(found)


def test_a_sample_of_single_node_steps_is_within_a_tenth_and_in_the_measured_order() -> None:
    found = figures("validation_vtrain_single.csv")
    assert number(found, "vTrain single-node", "rows") == 12
    assert number(found, "vTrain single-node", "time_mape_percent") < 10
    assert number(found, "vTrain single-node", "rank_correlation") > 0.95
    assert number(found, "vTrain single-node", "interval_coverage_percent") >= 60  # four of five promised, of 12 rows


def test_a_sample_of_steps_on_many_nodes_is_within_a_tenth() -> None:
    assert number(figures("validation_vtrain_multi.csv"), "vTrain multi-node", "time_mape_percent") < 12


def test_samples_of_other_tables_keep_to_their_errors_in_time_and_memory() -> None:
    found = figures("validation_tables.csv")
    for source, most in {"Korthikanti": 6, "SimuMax": 9, "torchtitan": 20}.items():
        assert number(found, source, "time_mape_percent") < most
    assert number(found, "SimuMax", "memory_mape_percent") < 6
    assert number(found, "SimuMax", "memory_upper_bound_coverage_percent") == 100


def test_regret_is_what_the_job_that_we_choose_takes_beyond_the_best_of_its_group() -> None:
    job = next(row.job for row in read(folder("published", "validation_vtrain_multi.csv")) if row.job)
    pairs = [(100, 110), (90, 121), (120, 200)]
    found = [Predicted(replace(job, step_ns=measured, group="g"), told) for told, measured in pairs]
    assert judged(found)["regret_percent"] == pytest.approx(10)
    assert judged(found[:1])["regret_percent"] is None


def test_ranks_correlate_as_spearman_says() -> None:
    for pairs, expected in (
        ([(1, 10), (2, 20), (3, 30)], 1.0),
        ([(1, 30), (2, 20), (3, 10)], -1.0),
        ([(1, 1), (2, 1), (3, 2)], 0.866),
        ([(1, 1), (2, 2)], None),
    ):
        found = rank_correlation(pairs)
        assert found == (None if expected is None else pytest.approx(expected, abs=1e-3))


def test_rows_that_cannot_be_predicted_are_counted_with_the_reason() -> None:
    rows = [row for row in read(folder("published", "megatron_bridge_anchors.csv")) if not row.job][:2]
    found = summary([(row, None) for row in rows])
    assert (found["rows"], found["rows_skipped"]) == (0, 2)
    assert [miss["why"] for miss in found["skipped"]] == [row.why_not for row in rows]  # type: ignore[attr-defined]


def test_a_table_that_nobody_knows_is_refused_by_its_columns(tmp_path: Path) -> None:
    with (tmp_path / "mine.csv").open("w") as file:
        csv.writer(file).writerows([["a", "b"], [1, 2]])
    with pytest.raises(InvalidInput, match="told by its column"):
        read(tmp_path / "mine.csv")


def test_a_job_is_predicted_the_same_however_often_it_is_asked() -> None:
    rows = read(folder("published", "validation_vtrain_multi.csv"))
    jobs = [row.job for row in rows if isinstance(row.job, MeasuredJob)][:2]
    first, again = Predictor().all(jobs), Predictor().all(jobs)
    assert first == again
