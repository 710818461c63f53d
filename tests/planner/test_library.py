"""The library front: what the commands run, with tables and pictures; and the stages' names."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import planner
from benchmarks import default_commands, default_plan
from costmodel.errors import UsageError
from costmodel.model.profile import write_profile
from costmodel.zoo.generated import generate
from planner import (
    Effort,
    Problem,
    Space,
    compare_plans,
    judge,
    make_plan,
    memory,
    model,
    profile,
    read_plan,
    read_profile,
    write_plan,
)  # fmt: skip
from planner.commands import main
from planner.graph.names import stage_names
from simulator.charts import new_figure
from tests.support.repository import ROOT
from tests.support.small_plan import PLAN

QUESTION = Problem(generate("random:12:3"), None, num_devices=2, global_batch=16, effort=Effort(60.0, 0.01))


@pytest.fixture(scope="module", name="answer")
def answered() -> planner.PlanAnswer:
    return make_plan(QUESTION)


def test_the_library_plans_what_the_command_plans(answer: planner.PlanAnswer, tmp_path: Path) -> None:
    write_profile(tmp_path / "profile.json", QUESTION.profile)
    words = "plan profile.json --devices 2 --batch 16 --time-limit 60 --deterministic-limit 0.01 -o plan.json --json"
    command = [sys.executable, "-m", "planner", *words.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    said, own = json.loads(done.stdout), answer.to_json()
    timed = {"search_seconds", "searched"}  # they tell seconds
    assert {key: own[key] for key in said if key not in timed} == {
        key: value for key, value in said.items() if key not in timed
    }
    assert read_plan(tmp_path / "plan.json").stages == answer.plan.stages


def test_the_ladder_is_a_table_with_a_row_a_rung(answer: planner.PlanAnswer) -> None:
    table = answer.table()
    assert list(table.index) == [rung.strategy for rung in answer.plan.rungs]
    assert list(table["step_time_ns"]) == [rung.step_time_ns for rung in answer.plan.rungs]


def test_plans_are_compared_as_a_table_and_drawn_on_given_axes(answer: planner.PlanAnswer) -> None:
    other = make_plan(replace(QUESTION, space=Space(data=1, stages=2)))
    compared = compare_plans({"chosen": answer, "two stages": other.plan})
    table = compared.table()
    assert table.loc["two stages", "step_time_ns"] == other.plan.prediction.step_time_ns
    assert table.loc["chosen", "samples_per_s"] == pytest.approx(16e9 / answer.plan.prediction.step_time_ns)
    _, (first, second) = new_figure([2.0, 2.0])
    assert compared.draw(first) is first
    assert answer.draw(second) is second


def test_rows_that_rest_on_other_assumptions_are_marked() -> None:
    other = replace(PLAN, assumptions=replace(PLAN.assumptions, optimizer="sgd", links="free"))
    compared = compare_plans({"one": PLAN, "same": PLAN, "other": other})
    assert [row["differs_in"] for row in compared.rows()] == [[], [], ["links", "optimizer"]]
    shown = "\n".join(map(str, compared.text()))
    assert "other *" in shown
    assert "same *" not in shown


def test_a_name_that_the_library_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plan_all'"):
        planner.plan_all  # noqa: B018


def test_a_written_plan_reads_back_with_its_stages_names(answer: planner.PlanAnswer, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", answer.plan)
    assert read_plan(tmp_path / "plan.json") == answer.plan
    assert all(stage.name for stage in answer.plan.stages)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([["image.0", "image.1"], ["text.0"], ["head"]], ("image", "text.0", "head")),
        ([["embed", "layers.0.mlp", "layers.1"], ["layers.2", "layers.3.mlp"]], ("embed .. layers.1", "layers.2 .. 3")),
        ([["block"], ["block"]], ("block", "block (2)")),
        (
            [["model.layers.0.attn"], ["model.layers.0.mlp", "lm_head"]],
            ("model.layers.0.attn", "model.layers.0 .. lm_head"),
        ),
    ],
)
def test_a_stage_is_called_by_the_module_that_is_its_alone(paths: list[list[str]], names: tuple[str, ...]) -> None:
    assert stage_names(paths) == names


def test_the_default_is_held_against_fixed_choices_and_all_bounds() -> None:
    case = default_plan.Case("random:12:3", 2, "executor")
    row = default_plan.judge(case, default_plan.Work(2, Effort(0.0), Effort(0.0)))
    assert row["best_step_time_ns"] is not None
    assert isinstance(row["tried"], int)
    assert row["tried"] > len(default_plan.corners(2)) + 2
    assert row["broken_bounds"] == []


def test_a_command_answers_as_the_library_does() -> None:
    case = default_plan.Case("random:12:3", 2, "executor")
    rows = default_commands.differences((case.model, [(case, {}), (case, {"data": 2, "zero": 1}), (case, {"data": 3})]))
    assert [row["same"] for row in rows] == [True, True, True]
    assert [row["library"] == [None] * 3 for row in rows] == [False, False, True]


def test_a_default_that_a_flag_beats_and_a_bound_above_a_plan_are_named() -> None:
    free = default_plan.Found({}, 100, 101, 95, 1.0)
    faster = default_plan.Found({"data": 2}, 90, 90, 80, 1.0)
    slower = default_plan.Found({"zero": 1}, 102, 102, None, 1.0)
    found = default_plan.judgements(free, [faster, slower])
    assert found["beaten_by"] == ["--data 2: 90 ns, -10.000%"]
    assert found["broken_bounds"] == ["[] bound 95 ns, [--data 2] 90 ns: +5.556%"]


def test_a_question_that_cannot_be_meant_is_refused_before_any_search() -> None:
    with pytest.raises(UsageError, match="devices"):
        replace(QUESTION, num_devices=0)


def test_a_described_model_and_its_memory_are_those_of_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = model("llama3-8b", sequence=1024)
    assert main(["model", "llama3-8b", "--sequence", "1024", "-o", str(tmp_path / "m.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operators"] == len(described.graph.operators)
    assert main(["memory", str(tmp_path / "m.json"), "--devices", "8", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    table = memory(described, 8).table()
    assert list(table["point_bytes"]) == [row["point_bytes"] for row in rows]
    assert list(table.index) == [row["strategy"] for row in rows]


def test_a_dry_profile_is_that_of_the_command(tmp_path: Path) -> None:
    assert main(["profile", "zoo:gpt:small", "--dry-run", "-o", str(tmp_path / "p.json")]) == 0
    assert profile("zoo:gpt:small", dry_run=True).graph == read_profile(tmp_path / "p.json").graph


def test_runs_are_judged_by_group(tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    header = "model,device,devices,batch,sequence,step_time_ms,source"
    runs.write_text(
        f"{header}\nllama3-8b,h100-sxm-80,8,64,4096,3000,ours\nllama3-8b,h100-sxm-80,8,64,4096,3100,theirs\n"
    )
    table = judge(runs)
    assert list(table.index) == ["ours", "theirs"]
    assert table.loc["ours", "time_mape_percent"] >= 0
