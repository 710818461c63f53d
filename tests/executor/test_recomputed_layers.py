"""Some layers of a stage run again: a checkpoint around each, the same gradients as one process has."""

from dataclasses import replace

import pytest

from costmodel.capture.capture import operator_graph
from executor import Pipeline
from executor.observe.check import compare
from planner.answer.decide import plan
from planner.checker import check_plan
from planner.question.space import Space
from tests.support.pipelines import pipelines
from tests.support.random_profiles import chain
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool


def planned(model, space, layers):
    """Plan a captured model; what it costs is made up, since only what runs again matters here."""
    graph = operator_graph(jobs.captured(model), (2,))
    made_up = replace(chain(len(graph.operators), sizes=(2,)), graph=graph)
    fixed = replace(space, recompute="full", recompute_layers=layers)
    return plan(pipelines(made_up, 4, 16, 2, schedule="1f1b", space=fixed, deterministic_limit=0))


def errors(model, space, layers):
    found = planned(model, space, layers)
    source, batch = jobs.captured(model), jobs.whole_batch(model, found)
    assert not check_plan(found, operator_graph(source, (2,)))
    assert "executor" in found.runs_on
    assert any(stage.config.recomputed_operators for stage in found.stages)
    with Pipeline(found, source) as pipeline:
        pipeline.step(batch.kwargs or batch.args, batch.targets)
        result = compare(pipeline.worker, batch if pipeline.rank == 0 else None)
    return result.max_gradient_error, result.loss_error


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(4)
    yield pool
    pool.close()


@pytest.mark.parametrize("model", ["small_gpt", "small_mmt"])
@pytest.mark.parametrize("space", [Space(stages=2, data=2), Space(stages=2, data=2, zero=1), Space(stages=4)])
def test_one_layer_of_each_stage_that_runs_again_changes_no_gradient(ranks, model, space):
    for gradient, loss in ranks.run(errors, model=model, space=space, layers=1):
        assert gradient <= 1e-5
        assert loss <= 1e-6
