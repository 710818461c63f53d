"""Micro-batches of unlike shapes on real ranks: gradients are those of one undivided batch, or the step is refused."""

import pytest

from tests.support.ranks import unlike_jobs as jobs
from tests.support.ranks.rank_pool import RankPool


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(4, jobs.context())
    yield pool
    pool.close()


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-h1", "graph-1f1b", "split", "recompute"])
def test_unlike_micro_batches_have_the_gradients_of_one_batch_under_each_kind_of_schedule(ranks, schedule):
    for answer in ranks.run(jobs.errors, schedule=schedule):
        assert max(map(abs, answer.values())) <= 1e-12, answer


@pytest.mark.parametrize("options", [{"packed": True}, {"packed": False}, {"zero": 3}])
def test_replicas_of_unlike_numbers_of_tokens_weigh_by_them(ranks, options):
    for answer in ranks.run(jobs.errors, schedule="graph-1f1b", data=2, **options):
        assert max(map(abs, answer.values())) <= 1e-12, answer


def test_a_short_step_may_have_fewer_micro_batches(ranks):
    for answer in ranks.run(jobs.errors, samples=jobs.SAMPLES[:3], short=True):
        assert max(map(abs, answer.values())) <= 1e-12, answer


def test_a_whole_batch_of_another_length_needs_no_weights(ranks):
    for answer in ranks.run(jobs.same_length, length=5):
        assert max(map(abs, answer.values())) <= 1e-12, answer


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": "mean"}, "the loss is a plain scalar: the average over micro-batches is not that over"),
        ({"free": False}, "or let lengths= name the dimensions that change"),
        ({"samples": jobs.SAMPLES[:2]}, "2 micro-batches are given, and the plan's step has 4; fewer"),
        ({"other_on": 1}, "rank 1 was given a batch of other shapes than rank 0"),
        (
            {"schedule": "graph-kfkb", "multiples": [1, 2, 2, 1]},
            "stages of the plan take several in one action: plan with multiples of 1",
        ),
    ],
)
def test_what_cannot_be_exact_is_refused_on_all_ranks_alike(ranks, options, said):
    for answer in ranks.run(jobs.refused, **options):
        assert said in answer
