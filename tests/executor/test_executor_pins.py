"""A plan given whole by pins runs: replicas with ZeRO-1 and recompute beside a rank with two stages."""

from dataclasses import replace

import pytest

from costmodel.capture.capture import operator_graph
from executor import Pipeline
from executor.gradients.optimizer import OPTIMIZERS
from executor.observe.check import compare
from planner.answer.decide import plan
from planner.checker import check_plan
from planner.question.pins import read_pins
from tests.support.pipelines import pipelines
from tests.support.random_profiles import chain
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool

PINS = """
[[stage]]
operators = ["branches.0.*"]
ranks = [0, 1]
config = {data = 2, zero = 1, recompute = "full"}
microbatch_multiple = 2
[[stage]]
operators = ["branches.1.*", "branches.2.*"]
ranks = [2]
[[stage]]
operators = ["*"]
ranks = [2]
config = {recompute = "full"}
"""


def pinned_plan(path, optimizer):
    """Plan a captured model by pins; what it costs is made up, since only the orders matter here."""
    graph = operator_graph(jobs.captured("small_mmt"), (2,))
    made_up = chain(len(graph.operators), sizes=(2,))
    made_up = replace(made_up, graph=graph)
    return plan(pipelines(made_up, 3, 16, 2, schedule="graph-1f1b", optimizer=optimizer, pins=read_pins(path)))


def errors(path):
    found = pinned_plan(path, "none")
    source, batch = jobs.captured("small_mmt"), jobs.whole_batch("small_mmt", found)
    assert not check_plan(found, operator_graph(source, (2,)))
    with Pipeline(found, source) as pipeline:
        pipeline.step(batch.kwargs or batch.args, batch.targets)
        result = compare(pipeline.worker, batch if pipeline.rank == 0 else None)
    return result.max_gradient_error, result.loss_error


def losses(path):
    """Train some steps with the plan's own optimizer, which ZeRO-1 divides."""
    found = pinned_plan(path, "adam")
    with Pipeline(found, jobs.captured("small_mmt"), optimizer=OPTIMIZERS["adam"]) as pipeline:
        batch = jobs.whole_batch("small_mmt", found)
        return [pipeline.step(batch.kwargs or batch.args, batch.targets) for _ in range(4)]


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(3)
    yield pool
    pool.close()


@pytest.fixture
def pin_file(tmp_path):
    path = tmp_path / "pins.toml"
    path.write_text(PINS)
    return path


def test_a_plan_by_pins_gives_the_gradients_of_one_process(ranks, pin_file):
    for gradient, loss in ranks.run(errors, path=pin_file):
        assert gradient <= 1e-5
        assert loss <= 1e-6


def test_a_plan_by_pins_trains_with_a_divided_optimizer(ranks, pin_file):
    for totals in ranks.run(losses, path=pin_file):
        assert totals[-1] < totals[0]
