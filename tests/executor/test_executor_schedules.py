"""Every schedule of the catalogue runs on four real ranks and gives the gradients of one process."""

import pytest

from simulator.schedules import SCHEDULES
from simulator.uniform import uniform_costs
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool

NUM_RANKS, NUM_MICROBATCHES = 4, 8


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(NUM_RANKS)
    yield pool
    pool.close()


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_of_the_catalogue_runs_with_exact_gradients(ranks, name):
    kind = SCHEDULES[name]
    chunks = 2 if kind.placement == "loop" else kind.chunks
    placed = uniform_costs(NUM_RANKS, chunks, 1, 1, 1, placement=kind.placement).ranks
    answers = ranks.run(
        jobs.errors, model="small_gpt", num_stages=NUM_RANKS * chunks, ranks=placed, schedule=name, relay=True,
        num_microbatches=NUM_MICROBATCHES,
    )  # fmt: skip
    for answer in answers:
        assert answer["gradient"] <= 1e-6, answer
        assert answer["loss"] <= 1e-6, answer
