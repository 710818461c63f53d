"""``penstock validate``: 0 for a legal plan, 7 with the list of problems for one that reads well and is wrong."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from planner.plan import write_plan
from tests.support.repository import GOLDEN, ROOT
from tests.support.small_plan import PLAN


def validate(*words: object) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "planner", "validate", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_legal_plan_is_fine() -> None:
    code, out, _ = validate(GOLDEN / "plan.json", "--json")
    answer = json.loads(out)
    assert (code, answer["ok"], answer["problems"]) == (0, True, [])
    assert answer["not_checked"]  # without --model


def test_a_plan_that_reads_well_and_is_wrong_exits_7_with_its_problems(tmp_path: Path) -> None:
    write_plan(tmp_path / "p.json", replace(PLAN, prediction=replace(PLAN.prediction, step_time_ns=100)))
    code, out, _ = validate(tmp_path / "p.json", "--json")
    problems = json.loads(out)["problems"]
    assert code == 7
    assert [p["kind"] for p in problems] == ["search", "time"]
    assert problems[1] == {
        "kind": "time",
        "place": "prediction.step_time_ns",
        "message": "100 ns; the orders and costs give 124 ns",
    }


def test_another_cluster_is_held_against_the_plan(tmp_path: Path) -> None:
    code, out, _ = validate(GOLDEN / "plan.json", "--cluster", GOLDEN / "cluster.toml", "--json")
    assert code == 7
    assert {p["kind"] for p in json.loads(out)["problems"]} == {"cluster"}


def test_a_plan_that_cannot_be_read_exits_3(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text((GOLDEN / "plan.json").read_text().replace('"gap": 0.24,', '"gap": NaN,'))
    code, out, err = validate(tmp_path / "p.json", "--json")
    assert code == 3
    assert json.loads(out or err)["exit"] == 3
