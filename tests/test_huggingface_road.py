"""Hugging Face models, their code unchanged: profiled, planned, validated and run with the gradients of one process."""

import json

import pytest

from planner.commands import main
from planner.plan import read_plan
from tests import executor_jobs as jobs
from tests.rank_pool import RankPool

pytest.importorskip("transformers", reason="transformers is not installed: its models are not tested")


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(2)
    yield pool
    pool.close()


def planned(folder, spec):
    """Profile and plan a model; return the plan file."""
    profile, plan = str(folder / "profile.json"), str(folder / "plan.json")
    quick = ["--microbatch-sizes", "2", "--repeats", "1", "--companions", "0", "--no-links"]
    assert main(["profile", spec, "-o", profile, *quick]) == 0
    plain = ["--planner", "uniform", "--optimizer", "none"]
    assert main(["plan", profile, "--devices", "2", "--batch", "4", *plain, "-o", plan]) == 0
    return plan


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "clip_vision", "t5", "llava"])
def test_a_model_goes_the_whole_road(ranks, name, tmp_path):
    spec = f"tests.hugging_face_models:{name}"
    plan = planned(tmp_path, spec)
    assert main(["validate", plan, "--model", spec]) == 0
    found = ranks.run(jobs.file_errors, path=plan, spec=spec)[0]
    assert found["gradient"] <= 1e-5, found
    assert found["loss"] <= 1e-6, found


def test_what_export_refuses_is_planned_and_validated_and_every_answer_says_why_it_does_not_run(tmp_path, capsys):
    spec = "tests.hugging_face_models:qwen2_vl"
    plan = planned(tmp_path, spec)
    capsys.readouterr()
    assert main(["validate", plan, "--model", spec, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert answer["plan_only"].startswith("torch.export cannot capture the model")
    assert "executor" not in read_plan(plan).runs_on
    body = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**body, "runs_on": ["executor"]}))
    assert main(["validate", plan, "--model", spec, "--json"]) == 7
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["kind"], problem["place"]) == ("model", "runs_on")
