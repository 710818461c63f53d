"""Hugging Face models, their code unchanged: profiled, planned, validated and run with the gradients of one process."""

import pytest
import torch
from torch.utils import _pytree as pytree

from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from executor import Pipeline
from executor.observe.check import compare
from planner.commands import main
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool

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


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_model_goes_the_whole_road(ranks, name, tmp_path):
    spec = f"tests.support.hugging_face_models:{name}"
    plan = planned(tmp_path, spec)
    assert main(["validate", plan, "--model", spec]) == 0
    found = ranks.run(jobs.file_errors, path=plan, spec=spec)[0]
    assert found["gradient"] <= 1e-5, found
    assert found["loss"] <= 1e-6, found


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "clip_vision", "llava"])
def test_other_kinds_run_in_stages_with_their_own_loss_and_gradients(name):
    """Both stages on this process: what is shown is that the stages of their graph are the model."""
    model = load_model(f"tests.support.hugging_face_models:{name}", 4)
    captured = capture(model, 2)
    plan = plan_by_hand(captured, in_equal_runs(captured.operators, 2), ranks=[(0,), (0,)], num_microbatches=2)
    with Pipeline(plan, captured) as pipeline:
        pipeline.step(model.kwargs)
        found = compare(pipeline.worker, model)
    assert found.max_gradient_error <= 1e-5, found
    assert found.loss_error <= 1e-6, found


def test_one_that_export_refuses_is_written_down_from_one_run():
    model = load_model("tests.support.hugging_face_models:qwen2_vl", 2)
    captured = capture(model, 2, plan_only=True)
    assert captured.program.plan_only.startswith("torch.export cannot capture the model")
    leaves = captured.program.module(*captured.bind(model).values())
    loss = model.loss(pytree.tree_unflatten(leaves, captured.program.out_spec))
    torch.testing.assert_close(loss, model.loss(model.module(**model.kwargs)))
