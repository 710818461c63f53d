"""Communicators of a rank: one with each rank that it exchanges messages with, one a set of ranks that sums."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from costmodel.stages.strategies.memory import COMMUNICATOR_BYTES, MESSAGES_BYTES
from executor.communication.groups import bind
from executor.communication.lanes import Lanes
from tests.support.gpt_graph import cluster, gpt
from tests.support.jobs import job
from tests.support.ranks import behind_jobs
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool

PLANS = {
    "chain of 4": ("small_gpt", {"num_stages": 4}),
    "interleaved, 4 chunks": ("small_gpt", {"num_stages": 8, "ranks": [(i % 2,) for i in range(8)], "relay": True,
                                            "schedule": "interleaved-1f1b"}),
    "replicas 3 then 2": ("two_branch", {"num_stages": 2, "ranks": [(0, 1, 2), (0, 3)], "num_microbatches": 6}),
    "ZeRO-1": ("two_branch", {"num_stages": 2, "ranks": [(0, 1), (2, 3)], "configs": [{"data": 2, "zero": 1}] * 2}),
    "graph": ("small_mmt", {"num_stages": 4}),
    "tied": ("tied_gpt", {"ranks": [(0, 1), (2,), (1, 2)]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def pools():
    made = {}
    yield lambda size: made.setdefault(size, RankPool(size))
    for pool in made.values():
        pool.close()


@pytest.mark.parametrize("name", PLANS)
def test_a_rank_has_at_most_one_a_neighbour_and_one_a_set_of_ranks(pools, name):
    model, options = PLANS[name]
    plan = jobs.make_plan(model, optimizer="adam", **options)
    lanes = Lanes.of(plan)
    neighbours = lanes.graph.neighbours(plan.batch.num_microbatches)
    answers = pools(len(plan.orders)).run(behind_jobs.trained, model=model, optimizer="adam", max_norm=1.0, **options)
    tied = {(0, 1, 2)} if name == "tied" else set()
    for rank, answer in enumerate(answers):
        sets = {tuple(range(len(plan.orders)))} | tied
        sets |= {stage.ranks for stage in plan.stages if rank in stage.ranks and len(stage.ranks) > 1}
        assert 0 < answer["communicators"] <= len(neighbours[rank]) + len(sets), (rank, neighbours[rank], sets)


def test_their_bytes_are_in_the_upper_bound_of_a_plans_memory():
    plan = job(gpt(4, 64, 32, 4), 4, 8, cluster=cluster(4), stages=4, data=1, microbatch_size=1)
    prediction, neighbours = plan.prediction, (1, 2, 2, 1)
    for rank, count in enumerate(neighbours):
        more = prediction.peak_memory_upper_bytes[rank] - prediction.peak_memory_bytes[rank]
        assert more >= count * MESSAGES_BYTES + COMMUNICATOR_BYTES
    end, middle = prediction.peak_memory_upper_bytes[:2]
    assert middle - end == pytest.approx(MESSAGES_BYTES, rel=0.1)


def test_a_backend_is_told_its_device_by_a_group_of_torchs():
    store = dist.HashStore()
    backend = dist.ProcessGroupGloo(store, 0, 1, timedelta(seconds=10))
    bind(backend, store, 0, 1, torch.device("cuda", 0))
    backend.eager_connect_single_device(torch.device("cuda", 0))
    values = torch.ones(2)
    backend.allreduce([values]).wait()
    assert values.tolist() == [1, 1]


def test_one_rank_with_a_device_of_its_own_makes_no_group(pools):
    answers = pools(1).run(behind_jobs.trained, model="small_gpt", optimizer="adam", max_norm=0.1, num_stages=1)
    assert answers[0]["communicators"] == 0
