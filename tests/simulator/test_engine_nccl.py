"""Messages on NCCL: one communicator for each two ranks, in the order in which both of them issue."""

from random import Random

import pytest

from costmodel.errors import InvalidInput
from simulator.engine import Structure, simulate
from simulator.lowering import lower
from simulator.schedules import build_schedule
from simulator.uniform import uniform_costs
from tests.simulator.test_engine import alike, schedule_of, starts
from tests.support.random_cases import random_costs, random_orders

SENDER = "0F0 0SEND_F0>1 0F1 0SEND_F1>1 0RECV_B0<1 0B0 0RECV_B1<1 0B1"


def test_both_directions_of_two_ranks_share_a_communicator() -> None:
    costs = alike(2, p2p_ns=50)
    other = "1RECV_F0<0 1RECV_F1<0 1F0 1B0 1SEND_B0>0 1F1 1B1 1SEND_B1>0"
    schedule = schedule_of(costs, 2, SENDER, other)
    directed, shared = (starts(schedule, costs, p2p=mode) for mode in ("links", "nccl"))
    assert (directed["1SEND_B0>0"], directed["0SEND_F1>1"]) == (90, 60)
    assert (shared["1SEND_B0>0"], shared["0SEND_F1>1"]) == (110, 60)


def test_ends_that_issue_in_different_orders_wait_for_ever_and_are_refused() -> None:
    costs = alike(2, p2p_ns=3)
    crossed = "1RECV_F1<0 1RECV_F0<0 1F0 1B0 1SEND_B0>0 1F1 1B1 1SEND_B1>0"
    schedule = schedule_of(costs, 2, SENDER, crossed)
    Structure(schedule, "links")
    with pytest.raises(InvalidInput, match="wait on each other"):
        Structure(schedule, "nccl")


def test_orders_without_transfers_are_refused_unless_nothing_travels() -> None:
    with pytest.raises(InvalidInput, match="lower the schedule"):
        Structure(schedule_of(alike(2, p2p_ns=3), 1, "0F0 0B0", "1F0 1B0"), "nccl")
    alone = schedule_of(alike(1), 1, "0F0 0B0")
    assert simulate(alone, alike(1), p2p="nccl").step_time_ns == 30


def test_lowered_schedules_run_on_it_and_are_no_faster_than_on_links_of_their_own_or_free() -> None:
    for seed in range(150):
        rng = Random(seed)
        num_microbatches = rng.choice((1, 2, 4, 6))
        costs = random_costs(rng, num_microbatches, 1)
        schedule = random_orders(rng, costs, num_microbatches, 1, lowered=False)
        lowered = lower(schedule, simulate(schedule, costs))
        modes = ("latency", "links", "nccl")
        free, directed, shared = (simulate(lowered, costs, p2p=mode).step_time_ns for mode in modes)
        assert free <= directed <= shared, seed


def test_a_chain_that_computes_longer_than_it_sends_loses_little() -> None:
    costs = uniform_costs(4, 1, 1000, 1000, 1000, 20)
    schedule = build_schedule("1f1b", costs, 16)
    lowered = lower(schedule, simulate(schedule, costs))
    free, shared = (simulate(lowered, costs, p2p=mode).step_time_ns for mode in ("latency", "nccl"))
    assert free <= shared <= 1.02 * free
