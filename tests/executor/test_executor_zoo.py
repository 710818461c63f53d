"""Zoo models of mixed kinds run in stages with the gradients of one process, micro-batch by micro-batch."""

import pytest

from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from executor import Pipeline
from executor.observe.check import compare
from planner.plan import write_plan
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize("name", ["clip", "dlrm26"])
def test_a_zoo_model_runs_in_three_stages_on_two_ranks(ranks, name, tmp_path):
    spec = f"zoo:{name}:small"
    captured = capture(load_model(spec, 2))
    stages = in_equal_runs(captured.operators, 3)
    write_plan(tmp_path / "plan.json", plan_by_hand(captured, stages, ranks=[(0,), (1,), (0,)], num_microbatches=2))
    found = ranks.run(jobs.file_errors, path=str(tmp_path / "plan.json"), spec=spec)[0]
    assert found["gradient"] <= 1e-5, found
    assert found["loss"] <= 1e-6, found


@pytest.mark.parametrize("name", ["vlm", "yolo"])
def test_a_large_one_runs_in_three_stages_of_one_process(name):
    """Its capture is what takes time: here it is made once."""
    model = load_model(f"zoo:{name}:small", 4)
    captured = capture(model, 2)
    stages = in_equal_runs(captured.operators, 3)
    plan = plan_by_hand(captured, stages, ranks=[(0,), (0,), (0,)], num_microbatches=2)
    with Pipeline(plan, captured) as pipeline:
        pipeline.step(model.kwargs or model.args, model.targets)
        found = compare(pipeline.worker, model)
    assert found.max_gradient_error <= 1e-5, found
    assert found.loss_error <= 1e-6, found
