"""A pipeline is a guest: closed, it has left nothing behind in the world that the program has joined."""

from multiprocessing import get_context

import pytest

from tests.support.ranks.closed_pipelines import left_behind
from tests.support.ranks.rank_pool import RankPool


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(2, get_context("spawn"))
    yield pool
    pool.close()


@pytest.mark.parametrize("name", ["zero-3", "zero-1"])
def test_a_closed_pipeline_leaves_no_descriptor_no_thread_and_no_key(ranks, name):
    for found in ranks.run(left_behind, name=name):
        assert set(found.values()) == {0}, found
