"""The benchmark of first answers (`benchmarks.first_answer`), in small: its cases, its rows, what it makes of them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.first_answer.__main__ import busy, in_time_ns, main
from benchmarks.first_answer.cases import AT_TWO_SECONDS, BESIDE_OTHERS, CASES, NUM_FIXED, Case
from benchmarks.first_answer.judged import summary
from benchmarks.support.kept_rows import read_rows
from costmodel.machines.cluster import read_cluster

NAMES = [case.name for case in CASES]

FIRST_ANSWER = ["the first plan within 1 CPU s", "the first plan within 1.10", "the best plan of those CPU seconds"]
BESIDE = ["beside busy processes within 1.10", "beside busy processes at most 2 s late"]


def row(case: str = "a", limit_s: float = 10.0, best_ms: float | None = 10.0, **others: Any) -> dict[str, Any]:
    """Return a row of a search that found its plan at once."""
    best_ns = None if best_ms is None else round(best_ms * 1e6)
    known = {"first_plan_cpu_s": 0.5, "first_plan_ns": best_ns, "in_time_ns": best_ns, "best_step_time_ns": best_ns}
    rest = {"case": case, "devices": 64, "limit_s": limit_s, "fixed": {}, "busy": 0, "cold": False, "wall_s": limit_s}
    return {**known, **rest, **others}


def test_there_are_24_cases_of_three_sizes_and_each_has_eight_fixed_commands() -> None:
    assert len(set(NAMES)) == 24
    assert {8, 64, 1024} <= {case.devices for case in CASES}
    assert {*AT_TWO_SECONDS, *BESIDE_OTHERS} <= set(NAMES)
    assert (len(AT_TWO_SECONDS), len(BESIDE_OTHERS)) == (4, 6)
    assert {case.name: len(case.fixed) for case in CASES} == dict.fromkeys(NAMES, NUM_FIXED)


@pytest.mark.parametrize("case", [case for case in CASES if case.place], ids=lambda case: case.name)
def test_cluster_files_hold_the_devices_of_their_case(case: Case, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(case.cluster_text(), encoding="utf-8")
    found = read_cluster(tmp_path / "cluster.toml")
    assert found.num_devices == case.devices
    assert bool(found.hosts[0].memory_bytes) == (case.place == "host memory")
    assert len(found.devices) == len(case.catalogue_ids)


@pytest.mark.parametrize(
    ("rows", "broken"),
    [
        ([row(limit_s=5), row(limit_s=10)], []),
        ([row(first_plan_cpu_s=1.01)], ["the first plan within 1 CPU s"]),
        ([row(devices=1024, first_plan_cpu_s=1.99)], []),
        ([row(limit_s=1, best_ms=None, first_plan_cpu_s=None), row()], [*FIRST_ANSWER, "the best step never rises"]),
        ([row(limit_s=5, best_ms=11.2), row(limit_s=60, first_plan_ns=11_200_000)], FIRST_ANSWER[1:]),
        ([row(limit_s=5, best_ms=10.0), row(limit_s=10, best_ms=10.06)], ["the best step never rises"]),
        ([row(limit_s=5, best_ms=10.0), row(limit_s=10, best_ms=10.04)], []),
        ([row(fixed={"--zero 3": 9_940_000})], ["no fixed command"]),
        ([row(fixed={"--zero 3": 9_960_000, "--zero 1": None})], []),
        ([row(limit_s=2, fixed={"--zero 3": 9_820_000})], []),
        ([row(), row(busy=8, best_ms=11.1, wall_s=12.1)], BESIDE),
        ([row(), row(busy=8, best_ms=10.9, wall_s=11.9)], []),
    ],
)  # fmt: skip
def test_a_promise_is_broken_by_its_own_case_alone(rows: list[dict[str, Any]], broken: list[str]) -> None:
    lines, count = summary(rows)
    told = [line[11:] for line in lines if line.startswith("  0 of  1")]
    assert [line[: len(name)] for line, name in zip(told, broken, strict=True)] == broken
    assert count == len(broken)


def test_a_plan_in_time_is_the_best_of_those_found_in_the_cpu_seconds() -> None:
    found = [{"cpu_s": s, "best_step_time_ns": ns} for s, ns in ((0.3, 30), (0.9, 20), (1.1, 10))]
    assert in_time_ns({"incumbents": found}, 1.0) == 20
    assert in_time_ns({}, 1.0) is None


def interrupted(before: set[int]) -> None:
    """End the benchmark while two processes compute."""
    with busy(2):
        assert len(children() - before) == 2
        raise KeyboardInterrupt


def test_busy_processes_are_ended_when_an_interrupt_ends_the_benchmark() -> None:
    before = children()
    with pytest.raises(KeyboardInterrupt):
        interrupted(before)
    assert children() == before


def children() -> set[int]:
    """Return the processes that this one started and that still run."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if words[0] != "Z" and int(words[1]) == os.getpid():
            found.add(int(path.parent.name))
    return found


def test_rows_are_kept_and_not_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    main(["--smoke", "-o", str(path)])
    (kept,) = read_rows(path)
    assert kept["limited_by"] in ("proved", "work limit")
    assert kept["families_seen"] == kept["families"] > 0
    assert 0 < kept["best_step_time_ns"] <= kept["first_plan_ns"]
    assert len(kept["fixed"]) == 2
    assert all(ns >= kept["best_step_time_ns"] for ns in kept["fixed"].values())
    assert kept["first_plan_cpu_s"] < kept["cpu_s"]
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(kept)[:40])  # a run that was ended while it wrote
    main(["--smoke", "-o", str(path)])
    assert read_rows(path) == [kept]
    assert "1 rows known" in capsys.readouterr().out
