"""The search of orders compiled: the same orders as the plain functions, and the times of the engine."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from costmodel.stages.costs import Costs, EdgeCost, StageCost
from planner.search.solvers.order_kernels import load
from simulator.engine import Structure
from simulator.schedule import Schedule, stage_graph
from simulator.schedules import build_schedule
from simulator.schedules.job_shop import job_shop_of
from simulator.schedules.job_shop_times import ShopArrays, starts
from simulator.schedules.order_kernels import Active, OrderKernels


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[OrderKernels, OrderKernels]]:
    """The plain functions and the compiled ones; the process goes on with what it had."""
    before = Active.kernels
    plain, compiled = OrderKernels.plain(), load()
    yield plain, compiled
    Active.kernels = before


def random_costs(seed: int) -> Costs:
    """A graph of stages that all differ, some with little memory for activations and some with slow edges."""
    rng = Random(seed)
    number = rng.randint(2, 6)
    stages = tuple(
        StageCost(
            *(rng.randint(500, 1500) for _ in range(3)), activation_bytes=10, weight_activation_bytes=rng.randint(1, 6),
            reduce_ns=rng.choice((0, 700)), optimizer_ns=100,
        )
        for _ in range(number)
    )  # fmt: skip
    ends = {(max(0, target - rng.randint(1, 2)), target) for target in range(1, number)}
    ends |= {(source, min(number - 1, source + rng.randint(1, 2))) for source in range(number - 1)}
    delay = rng.choice((5, 400))
    return Costs(stages, tuple(EdgeCost(source, target, delay, 1) for source, target in sorted(ends)))


@pytest.mark.parametrize("seed", range(12))
def test_compiled_functions_find_the_orders_of_the_plain_ones(
    both: tuple[OrderKernels, OrderKernels], seed: int
) -> None:
    costs, limit = random_costs(seed), (None, 70)[seed % 2]
    found = []
    for kernels in both:
        Active.kernels = kernels
        found.append(build_schedule("graph-zb", costs, 6 + seed, memory_limit_bytes=limit, seed=seed, effort=0.3))
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(6))
def test_times_of_orders_are_the_engines_where_messages_occupy_nothing(
    both: tuple[OrderKernels, OrderKernels], seed: int
) -> None:
    given = random_costs(seed)
    stages = tuple(replace(stage, reduce_ns=0, optimizer_ns=0) for stage in given.stages)  # orders have neither
    costs = replace(given, stages=stages)
    schedule: Schedule = build_schedule("graph-zb", costs, 5, effort=0.1)
    jobs = job_shop_of(costs, stage_graph(costs), 5, None, split=True)
    sequences = jobs.sequences(schedule.orders)
    for Active.kernels in both:
        found = starts(jobs, sequences)
        assert found is not None
        assert found[0] == Structure(schedule).times(costs).step_time_ns


def test_orders_that_wait_on_each_other_have_no_times(both: tuple[OrderKernels, OrderKernels]) -> None:
    """The second stage's first forward stands behind a backward that waits for it."""
    costs = Costs((StageCost(1, 1, 1), StageCost(1, 1, 1)), (EdgeCost(0, 1),))
    jobs = job_shop_of(costs, stage_graph(costs), 1, None, split=True)
    backwards = tuple(tuple(reversed([job for queue in queues for job in queue])) for queues in jobs.queues)
    for Active.kernels in both:
        shop = ShopArrays(jobs)
        assert shop.step_ns(shop.row(backwards)) == -1
        assert starts(jobs, backwards) is None
