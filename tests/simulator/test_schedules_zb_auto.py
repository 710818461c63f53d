"""`zb-auto`: its times are the engine's, its memory keeps the limit, and more freedom never costs time."""

from dataclasses import replace
from random import Random

import pytest

from costmodel.errors import NoPlanFits, UsageError
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.engine import Structure
from simulator.engine.times import Times
from simulator.schedule import Schedule, chain_edges, stage_graph
from simulator.schedules import build_schedule
from simulator.schedules.kind import Request
from simulator.schedules.sweep_pipeline import pipeline
from simulator.schedules.sweep_search import best_sweep
from simulator.schedules.zb_auto import as_orders
from simulator.uniform import share_bytes, uniform_costs
from simulator.validation import validate_schedule


def times_of(costs: Costs, m: int, limit_bytes: int | None, objective: str = "span") -> Times:
    schedule = build_schedule("zb-auto", costs, m, memory_limit_bytes=limit_bytes, objective=objective)
    return Structure(schedule).times(costs)


def random_pipeline(rng: Random, num_microbatches: int) -> Costs:
    """Return a stage graph with one stage a rank: uneven, delayed edges, frozen sources, lists of values."""

    def amount(low: int, high: int) -> int | tuple[int, ...]:
        if rng.random() < 0.7:
            return rng.randint(low, high)
        return tuple(rng.randint(low, high) for _ in range(num_microbatches))

    n = rng.randint(1, 6)
    edges = [
        EdgeCost(i, j, rng.choice((0, 3, 9)), rng.choice((0, 0, 2)), gradient=rng.random() < 0.9)
        for j in range(n)
        for i in range(j)
        if rng.random() < 0.5
    ]
    stages = [
        StageCost(amount(1, 9), amount(0, 9), amount(0, 9), activation_bytes=amount(4, 9),
                  weight_activation_bytes=rng.randint(0, 4), static_bytes=rng.randint(0, 5),
                  recompute_ns=rng.choice((0, 0, 3)), backward=s > 0 or rng.random() < 0.7)
        for s in range(n)
    ]  # fmt: skip
    return Costs(tuple(stages), tuple(edges))


def test_the_times_of_the_sweeps_are_those_of_the_engine_and_the_limit_holds() -> None:
    for seed in range(25):
        rng = Random(seed)
        num_microbatches = rng.choice((1, 3, 8, 12))
        costs = random_pipeline(rng, num_microbatches)
        without_messages = replace(costs, edges=tuple(replace(e, size_bytes=0) for e in costs.edges))
        limit_bytes = rng.randint(14, 60)
        graph = stage_graph(costs)
        line = pipeline("zb-auto", without_messages, graph, num_microbatches, limit_bytes)
        found = best_sweep(line, "span")
        request = Request(without_messages, graph, num_microbatches)
        schedule = Schedule("zb-auto", graph, num_microbatches, as_orders(request, found, line))
        assert validate_schedule(schedule) == ()
        times = Structure(schedule).times(without_messages)
        assert (found.span_ns, found.step_time_ns) == (times.span_ns, times.step_time_ns), f"seed {seed}"
        assert max(times.peak_memory_bytes) <= limit_bytes, f"seed {seed}"


def test_at_equal_times_and_twice_the_memory_no_rank_waits() -> None:
    times = times_of(uniform_costs(4, 1, 10, 10, 10), 12, 8 * share_bytes())
    assert (times.span_ns, times.step_time_ns) == (360, 390)


def test_at_the_memory_of_1f1b_it_is_as_fast_as_zb_h1() -> None:
    costs = uniform_costs(8, 1, 10, 12, 8, 1)
    other = Structure(build_schedule("zb-h1", costs, 24)).times(costs)
    times = times_of(costs, 24, 8 * share_bytes())
    assert times.span_ns <= other.span_ns
    assert max(times.peak_memory_bytes) <= max(other.peak_memory_bytes)


def test_more_memory_never_takes_longer() -> None:
    costs = uniform_costs(4, 1, 28, 28, 20, 2)
    spans = [times_of(costs, 8, shares * share_bytes()).span_ns for shares in (1, 2, 3, 4, 6, 8)]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] > spans[3] > spans[5]


def test_the_objective_is_what_it_minimises() -> None:
    costs = uniform_costs(4, 1, 10, 12, 8, 1)
    limit = 6 * share_bytes()
    span, step = (times_of(costs, 16, limit, objective) for objective in ("span", "step"))
    assert span.span_ns <= step.span_ns
    assert step.step_time_ns <= span.step_time_ns
    with pytest.raises(UsageError, match="minimises span or step"):
        times_of(costs, 16, limit, "memory")


def test_equal_input_gives_equal_orders() -> None:
    costs = uniform_costs(4, 1, 11, 13, 7, 1)
    first, second = (build_schedule("zb-auto", costs, 20, memory_limit_bytes=12) for _ in range(2))
    assert first == second


def test_a_limit_below_one_activation_says_by_how_much_it_falls_short() -> None:
    stage = StageCost(1, 1, 1, activation_bytes=8, static_bytes=5)
    costs = Costs((stage, stage), tuple(chain_edges(2)))
    with pytest.raises(NoPlanFits, match="3 more than the limit of 10"):
        times_of(costs, 4, 10)
    assert max(times_of(costs, 4, 13).peak_memory_bytes) == 13


def test_without_a_limit_it_takes_twice_what_1f1b_needs() -> None:
    costs = uniform_costs(4, 1, 10, 10, 10)
    assert times_of(costs, 16, None).span_ns == times_of(costs, 16, 8 * share_bytes()).span_ns == 480


def test_one_message_over_each_edge_is_set_aside() -> None:
    stages = (StageCost(10, 10, 10),) * 3
    costs = Costs(stages, tuple(EdgeCost(i, i + 1, 1, size_bytes=3) for i in range(2)))
    assert pipeline("zb-auto", costs, stage_graph(costs), 8, 40).room == (34, 28, 34)
    assert max(times_of(costs, 8, 40).peak_memory_bytes) <= 40


PROVED = [  # four ranks at 0.6 of 1F1B's memory: micro-batches, F, I, W and delay, and the least step (CP-SAT, proved)
    (8, (12, 7, 7, 0), 372),
    (6, (7, 9, 4, 2), 260),
    (6, (9, 6, 12, 0), 249),
    (8, (8, 14, 5, 2), 449),
    (6, (9, 13, 12, 1), 363),
    (6, (7, 10, 12, 1), 297),
    (8, (10, 7, 5, 2), 364),
    (6, (14, 11, 9, 2), 402),
    (6, (6, 10, 11, 1), 280),
    (8, (12, 13, 5, 0), 460),
]


def test_below_the_memory_of_1f1b_it_is_within_four_per_cent_of_the_proved_optimum() -> None:
    limit = int(0.6 * 4 * share_bytes())
    found = [times_of(uniform_costs(4, 1, *four), m, limit, "step").step_time_ns / least for m, four, least in PROVED]
    assert max(found) <= 1.04
    assert sum(one == 1 for one in found) >= 6
