"""Plans on a device that works behind its host, as a GPU does: exact with few queues, and its host waits for nothing.

``python -m benchmarks.reliability --full --only behind-plans`` runs 300 random plans.
"""

import pytest
import torch

from tests.properties.executor_promises import NUM_RANKS, behind_plan_failures, still_rank_problems
from tests.support.ranks import behind_jobs
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool

SAMPLE = 12
CASES = {
    "chain": ("small_gpt", {}),
    "graph": ("two_branch", {}),
    "split": ("small_mmt", {"schedule": "split"}),
    "weighted": ("masked", {}),
    "replicas": ("two_branch", {"num_stages": 2, "ranks": [(0, 1), (2,)]}),
    "tied": ("tied_gpt", {"ranks": [(0, 1), (2,), (1, 2)]}),
}


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(3)
    yield pool
    pool.close()


def test_random_plans_are_exact_at_one_and_at_eight_queues():
    assert behind_plan_failures(SAMPLE, by_turns=True) == []


@pytest.mark.parametrize("num_queues", [1, 8])
def test_a_rank_that_stands_still_is_named_though_no_host_waits_for_it(tmp_path, num_queues):
    assert still_rank_problems(tmp_path, num_queues % NUM_RANKS, num_queues) == []


@pytest.fixture(scope="module", params=CASES)
def case(request, ranks):
    """What a case is asked for, and what each rank answers."""
    model, options = CASES[request.param]
    given = {"model": model, "optimizer": "adam", "max_norm": 0.1, **options}
    return given, ranks.run(behind_jobs.trained, **given)


def test_no_host_waits_between_the_first_action_and_opt(case):
    is_looked_at = case[0]["model"] == CASES["weighted"][0]  # its pairs are tried on halves in the first step
    for answer in case[1]:
        waited = [before_opt(step) for step in steps_of(answer["events"])]
        assert len(waited) == 3
        assert waited[is_looked_at:] == [[]] * (3 - is_looked_at)
        # the count can see something: the loss is read behind OPT
        assert all("aten::_local_scalar_dense" in step for step in steps_of(answer["events"]))


def test_training_on_it_gives_the_numbers_of_a_cpu(ranks, case):
    given, (behind, *_) = case
    plain = ranks.run(jobs.trained_and_clipped, **given)[0]
    assert behind["losses"] == pytest.approx(plain["losses"], rel=1e-6)
    for key, value in plain["state"].items():
        torch.testing.assert_close(behind["state"][key], value, rtol=1e-5, atol=1e-6)


def steps_of(events):
    """Cut what a rank did and waited for into steps."""
    starts = [i for i, event in enumerate(events) if event == "step"]
    return [events[start : events.index("end", start)] for start in starts]


def before_opt(step):
    """Return what the host has waited for from the first action to the first OPT."""
    first = next(i for i, event in enumerate(step) if event.startswith("action"))
    return [event for event in step[first : step.index("action OPT")] if not event.startswith("action")]
