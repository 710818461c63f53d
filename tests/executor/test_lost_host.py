"""A job under a book goes on after a lost rank: fewer ranks take the next page from the last whole checkpoint."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.errors import DoesNotMatch
from examples.train import build, train_alone
from executor import Pipeline
from executor.communication.starts import agree_on_start
from planner.plan.book import Page, write_book
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand
from tests.support.ranks.lost_rank_jobs import EVERY, Starts, shorten

DIES_AT, NUM_STEPS = EVERY + 2, EVERY + 4


@pytest.fixture(scope="module", autouse=True)
def short_job():
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch.setattr)
        yield


@pytest.fixture(scope="module", name="book")
def book_of_three_and_two(tmp_path_factory):
    source = capture(load_model("examples.train:build", 4))
    pages = [
        Page(number, plan_by_hand(source, in_equal_runs(source.operators, number), microbatch_size=8, optimizer="adam"))
        for number in (3, 2)
    ]
    path = tmp_path_factory.mktemp("book") / "book.json"
    write_book(path, pages)
    return path


def test_three_stages_lose_a_rank_and_go_on_as_two_from_their_checkpoint_with_the_plain_loops_losses(book, tmp_path):
    starts = Starts(book, tmp_path)
    assert starts.run(3, NUM_STEPS, dies_at=DIES_AT, who=1) == [8, -signal.SIGKILL, 8]
    assert not list(tmp_path.glob("rank*.json"))
    assert starts.run(2, NUM_STEPS) == [0, 0]
    assert starts.losses(0) == starts.losses(1) == pytest.approx(train_alone(NUM_STEPS)[EVERY:], rel=1e-4)


def test_ranks_that_are_started_again_on_one_store_do_not_take_an_earlier_starts_for_each_other():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def come(rank, delay_s):
        own = dist.TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
        time.sleep(delay_s)
        return agree_on_start(own, rank, 3, timedelta(seconds=30))

    starts = []
    for delays_s in ((0, 0, 0), (0, 0.2, 0.1), (0.2, 0, 0)):
        with ThreadPoolExecutor(3) as pool:
            starts.append(set(pool.map(come, range(3), delays_s)))
    assert [len(names) for names in starts] == [1, 1, 1]
    assert len(set.union(*starts)) == 3


def test_a_number_of_ranks_without_a_page_is_refused_before_anything_starts(book):
    model, inputs, targets, loss = build(32)
    with pytest.raises(
        DoesNotMatch, match=r"1 ranks are running, and the book has pages for 3 \(3 hosts\), 2 \(2 hosts"
    ):
        Pipeline.from_plan(book, model, loss, inputs=inputs, targets=targets)
