"""Idle time by cause and the critical path: exact tables, and sums that are exact on random cases."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import parse_action
from simulator.bubbles import bubble_causes
from simulator.critical_path import critical_path
from simulator.engine import simulate
from simulator.lowering import close_step, lower
from simulator.schedule import Schedule, chain_edges, stage_graph
from simulator.schedules import build_schedule
from simulator.timeline import Timeline
from tests.properties.judge_promises import account_failures
from tests.support.random_stage_graphs import random_costs, random_schedule


def schedule_of(costs: Costs, num_microbatches: int, *rows: str) -> Schedule:
    orders = tuple(tuple(parse_action(text) for text in row.split()) for row in rows)
    return Schedule("hand", stage_graph(costs), num_microbatches, orders)


def idles(costs: Costs, num_microbatches: int, *rows: str, p2p: str = "latency") -> list[tuple[int, int, int, str]]:
    schedule = schedule_of(costs, num_microbatches, *rows)
    found = bubble_causes(schedule, costs, simulate(schedule, costs, p2p=p2p)).idles
    return [(i.rank, i.start_ns, i.end_ns, i.cause) for i in found]


def chain(*times: tuple[int, int, int], p2p_ns: int = 0) -> Costs:
    return Costs(tuple(StageCost(*t) for t in times), tuple(chain_edges(len(times), p2p_ns)))


def test_filling_is_warm_up_and_draining_cool_down() -> None:
    """1F1B, F = I = W = 1: rank 0 waits for the first gradient and, behind its last forward, for the last one."""
    assert idles(chain((1, 1, 1), (1, 1, 1)), 2, "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1") == [
        (0, 2, 4, "warm-up"),
        (0, 6, 7, "cool-down"),
        (1, 0, 1, "warm-up"),
        (1, 7, 9, "cool-down"),
    ]


def test_the_causes_of_uniform_1f1b_are_its_closed_form() -> None:
    """(p - 1)(F + I + W) on each of p ranks, half warm-up and half cool-down but for the middle; nothing else."""
    costs = chain(*((1, 1, 1),) * 4)
    schedule = build_schedule("1f1b", costs, 8)
    totals = bubble_causes(schedule, costs, simulate(schedule, costs)).totals
    assert totals["warm-up"] + totals["cool-down"] == sum(totals.values()) == 4 * 3 * 3


def test_a_message_on_its_way_is_communication() -> None:
    """Latency 10: the gradient of micro-batch 0 is made at 50 and there at 60, the output of 2 at 90 and 100."""
    costs = chain((10, 10, 10), (10, 10, 10), p2p_ns=10)
    found = idles(costs, 3, "0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2")
    assert found == [
        (0, 20, 50, "warm-up"),
        (0, 50, 60, "communication"),
        (0, 110, 130, "cool-down"),
        (0, 130, 140, "communication"),
        (1, 0, 20, "warm-up"),
        (1, 80, 90, "waiting for stage 0"),
        (1, 90, 100, "communication"),
        (1, 130, 160, "cool-down"),
    ]


def test_what_waits_for_a_late_branch_waits_at_a_join() -> None:
    """Stage 2 has the output of stage 0 at 2, that of stage 1 at 12; its second join is fed at 4 and 24."""
    costs = Costs(
        (StageCost(2, 0, 0, backward=False), StageCost(12, 0, 0, backward=False), StageCost(1, 1, 0)),
        (EdgeCost(0, 2, gradient=False), EdgeCost(1, 2, gradient=False)),
    )
    found = idles(costs, 3, "0F0 0F1 0F2", "1F0 1F1 1F2", "2F0 2B0 2F1 2B1 2F2 2B2")
    assert [i for i in found if i[0] == 2] == [
        (2, 0, 12, "warm-up"),
        (2, 14, 24, "waiting at a join"),
        (2, 26, 36, "waiting at a join"),
    ]


def test_a_rank_with_less_work_than_the_one_that_holds_it_up_is_imbalanced() -> None:
    costs = chain((4, 0, 0), (1, 1, 0))
    found = idles(costs, 3, "0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2")
    assert [i for i in found if i[0] == 1] == [
        (1, 0, 4, "warm-up"),
        (1, 6, 8, "imbalance"),
        (1, 10, 12, "imbalance"),
    ]


def test_a_wait_is_followed_to_its_root() -> None:
    """Rank 2 waits for rank 1, which waits for the heavy rank 0: imbalance all the way."""
    costs = chain((9, 0, 0), (1, 0, 0), (1, 1, 0))
    found = idles(costs, 3, "0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2", "2F0 2B0 2F1 2B1 2F2 2B2")
    assert [i for i in found if i[0] == 2] == [
        (2, 0, 10, "warm-up"),
        (2, 12, 18, "imbalance"),
        (2, 18, 19, "waiting for stage 1"),  # rank 1 works by then, and has no more work than rank 2
        (2, 21, 27, "imbalance"),
        (2, 27, 28, "waiting for stage 1"),
    ]


def test_a_wait_for_equals_names_the_stage() -> None:
    """Stage 0 works on the second forward of micro-batch pairs; both ranks have the same work."""
    costs = chain((3, 1, 0), (1, 3, 0))
    found = idles(costs, 3, "0F0 0B0 0F1 0B1 0F2 0B2", "1F0 1B0 1F1 1B1 1F2 1B2")
    assert [i for i in found if i[0] == 1] == [
        (1, 0, 3, "warm-up"),
        (1, 7, 11, "waiting for stage 0"),
        (1, 15, 19, "waiting for stage 0"),
        (1, 23, 24, "cool-down"),
    ]


def test_a_stream_taken_by_transfers_is_communication() -> None:
    costs = chain((2, 2, 0), (2, 2, 0), p2p_ns=1)
    rows = ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    assert (0, 2, 3, "communication") in idles(costs, 2, *rows, p2p="blocking")


def test_reduction_and_optimizer_are_named() -> None:
    costs = Costs((StageCost(1, 1, 1, reduce_ns=7, optimizer_ns=5),), (), ranks=((0, 1),))
    schedule = close_step(schedule_of(costs, 2, "0F0 0B0", "0F1 0B1"), (True,), optimizer=True)
    causes = bubble_causes(schedule, costs, simulate(schedule, costs))
    assert causes.per_rank == ({"reduction": 7, "optimizer": 5},) * 2
    assert {cause: ns for cause, ns in causes.totals.items() if ns} == {"reduction": 14, "optimizer": 10}


def test_the_totals_name_every_cause_without_a_stage_even_at_zero() -> None:
    costs = chain((1, 1, 1))
    schedule = schedule_of(costs, 1, "0F0 0B0")
    totals = bubble_causes(schedule, costs, simulate(schedule, costs)).totals
    assert totals == dict.fromkeys(("warm-up", "cool-down", "communication", "waiting at a join", "imbalance"), 0)


def test_costs_and_timelines_of_something_else_are_refused() -> None:
    costs = chain((1, 1, 1), (1, 1, 1))
    schedule = schedule_of(costs, 1, "0F0 0B0", "1F0 1B0")
    with pytest.raises(InvalidInput, match="the timeline lacks"):
        bubble_causes(schedule, costs, Timeline(2, ()))
    with pytest.raises(InvalidInput, match="costs of 1 ranks, a schedule of 2 and a timeline of 2"):
        bubble_causes(schedule, chain((1, 1, 1)), simulate(schedule, costs))


def random_case(seed: int) -> tuple[Schedule, Costs, Timeline]:
    rng = Random(seed)
    num_microbatches = rng.choice((1, 2, 3, 4, 6))
    costs = random_costs(rng, num_microbatches)
    split = frozenset(s for s in range(len(costs.stages)) if rng.random() < 0.5)
    schedule = random_schedule(rng, costs, num_microbatches, split)
    closed = close_step(schedule, [rng.random() < 0.5 for _ in costs.stages], optimizer=rng.random() < 0.5)
    mode, optimizer_mode = rng.choice(("latency", "blocking", "links")), rng.choice(("independent", "global-norm"))
    if rng.random() < 0.5:
        closed = lower(closed, simulate(closed, costs))
    return closed, costs, simulate(closed, costs, p2p=mode, optimizer_mode=optimizer_mode)


def test_the_causes_of_each_rank_sum_to_its_idle_time_exactly() -> None:
    for seed in range(200):
        schedule, costs, timeline = random_case(seed)
        causes = bubble_causes(schedule, costs, timeline)
        for rank, row in enumerate(timeline.compute_spans):
            busy = sum(span.end_ns - span.start_ns for span in row)
            assert sum(causes.per_rank[rank].values()) == timeline.step_time_ns - busy
        idle = sum(causes.totals.values())
        assert idle == timeline.num_ranks * timeline.step_time_ns - timeline.compute_ns
        assert timeline.bubble_ratio == pytest.approx(idle / (timeline.num_ranks * timeline.step_time_ns or 1))


def test_idle_stretches_never_overlap_each_other_or_compute() -> None:
    for seed in range(200):
        schedule, costs, timeline = random_case(seed)
        found = bubble_causes(schedule, costs, timeline).idles
        for rank, row in enumerate(timeline.compute_spans):
            own = [(i.start_ns, i.end_ns) for i in found if i.rank == rank]
            own += [(s.start_ns, s.end_ns) for s in row if s.start_ns < s.end_ns]
            own.sort()
            assert all(before[1] == after[0] for before, after in pairwise(own))


# Critical path


def links(costs: Costs, num_microbatches: int, *rows: str, p2p: str = "latency") -> list[tuple[str, str, int, int]]:
    schedule = schedule_of(costs, num_microbatches, *rows)
    path = critical_path(schedule, simulate(schedule, costs, p2p=p2p))
    return [(link.what, str(link.action), link.rank, link.time_ns) for link in path]


def test_the_critical_path_goes_down_and_back_with_its_transfers() -> None:
    assert links(chain((10, 10, 10), (11, 11, 11), p2p_ns=3), 1, "0F0 0B0", "1F0 1B0") == [
        ("action", "0F0", 0, 10),
        ("transfer", "0SEND_F0>1", 0, 3),
        ("action", "1F0", 1, 11),
        ("action", "1B0", 1, 22),
        ("transfer", "1SEND_B0>0", 1, 3),
        ("action", "0B0", 0, 20),
    ]


def test_the_critical_path_stays_on_the_busiest_rank() -> None:
    path = links(chain((1, 0, 0), (5, 5, 0)), 2, "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    assert [text for _, text, *_ in path if not text.startswith("0B") and "SEND" not in text] == [
        "0F0",
        "1F0",
        "1B0",
        "1F1",
        "1B1",
    ]


def test_the_links_of_the_critical_path_sum_to_the_step_time() -> None:
    for seed in range(200):
        schedule, _, timeline = random_case(seed)
        path = critical_path(schedule, timeline)
        assert sum(link.time_ns for link in path) == timeline.step_time_ns
        assert all(link.what != "wait" for link in path)
        assert all(before.end_ns == after.start_ns for before, after in pairwise(path))


def test_an_update_that_waits_for_a_norm_is_bridged_by_a_wait() -> None:
    costs = Costs((StageCost(1, 1, 1, optimizer_ns=5), StageCost(2, 2, 2, optimizer_ns=5)), (EdgeCost(0, 1, 3),))
    schedule = close_step(schedule_of(costs, 1, "0F0 0B0", "1F0 1B0"), (False, False), optimizer=True)
    timeline = simulate(schedule, costs, optimizer_mode="post-validated")
    path = critical_path(schedule, timeline)
    assert [(link.what, str(link.action), link.time_ns) for link in path][-2:] == [
        ("wait", "1OPT", 3),
        ("action", "1OPT", 5),
    ]
    assert sum(link.time_ns for link in path) == timeline.step_time_ns


def test_an_empty_timeline_has_no_critical_path() -> None:
    costs = chain((1, 1, 1))
    assert critical_path(Schedule("none", stage_graph(costs), 1, ((),)), Timeline(1, ())) == ()


def test_lowering_idle_time_and_critical_path_add_up_on_the_cases_of_the_reliability_table() -> None:
    assert account_failures(100) == []


def test_a_measured_timeline_with_gaps_of_its_own_adds_up_too() -> None:
    """Every action ends a little before its simulated end, as if something unaccounted followed it."""
    for seed in range(100):
        rng = Random(seed)
        schedule, costs, timeline = random_case(seed)
        spans = tuple(
            replace(
                s, start_ns=100 + 10 * s.start_ns, end_ns=100 + max(10 * s.start_ns, 10 * s.end_ns - rng.randint(0, 4))
            )
            for s in timeline.spans
        )
        measured = Timeline(timeline.num_ranks, spans)
        causes = bubble_causes(schedule, costs, measured)
        assert sum(causes.totals.values()) == measured.num_ranks * measured.step_time_ns - measured.compute_ns
        path = critical_path(schedule, measured)
        assert sum(link.time_ns for link in path) == measured.step_time_ns
        assert all(before.end_ns == after.start_ns for before, after in pairwise(path))
