"""`graph-zb` and `graph-auto`: legal orders in the memory, the least of all on small stage graphs, and the solver's."""

import json
import sys

import pytest

from costmodel.stages.costs import Costs, EdgeCost, StageCost
from costmodel.stages.costs_file import read_costs
from planner.checker import check_plan
from planner.commands import main
from planner.synthesis.polish import polished
from simulator.engine import Structure
from simulator.engine.times import Times
from simulator.schedules import build_schedule
from simulator.uniform import share_bytes, uniform_costs
from tests.properties.synthesis_promises import brute_failures, illegal_failures
from tests.support import jobs
from tests.support.published_data import folder, rows
from tests.support.random_profiles import chain

UNIT = StageCost(10, 10, 10, activation_bytes=64, weight_activation_bytes=32)
TWO_BRANCHES = Costs(
    (UNIT,) * 8, tuple(EdgeCost(*ends) for ends in ((0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7), (3, 7)))
)
UNEVEN = Costs(
    tuple(
        StageCost(f, i, w, activation_bytes=4, weight_activation_bytes=2)
        for f, i, w in ((7, 8, 6), (4, 4, 4), (9, 11, 8))
    ),
    (EdgeCost(0, 2, 3), EdgeCost(1, 2)),
    ((0,), (0,), (1,)),
)
"""Two towers that share a rank."""


def times_of(name: str, costs: Costs, m: int, limit_bytes: int | None = None) -> Times:
    return Structure(build_schedule(name, costs, m, memory_limit_bytes=limit_bytes)).times(costs)


def test_on_small_stage_graphs_no_order_is_shorter_fused_or_split() -> None:
    assert brute_failures(5) == []


def test_orders_of_random_stage_graphs_are_legal_and_keep_the_limit() -> None:
    assert illegal_failures(4) == []


def test_weight_gradients_fill_the_waits_of_two_branches_at_the_memory_of_graph_1f1b() -> None:
    fused = times_of("graph-1f1b", TWO_BRANCHES, 16)
    split = times_of("graph-zb", TWO_BRANCHES, 16, max(fused.peak_memory_bytes))
    assert (fused.step_time_ns, split.step_time_ns) == (600, 520)
    assert max(split.peak_memory_bytes) <= max(fused.peak_memory_bytes)


@pytest.mark.parametrize(
    ("name", "chunks", "placement"),
    [("zb-v", 2, "wave"), ("v-half", 2, "wave"), ("interleaved-zb", 2, "loop"), ("zb-auto", 1, "line")],
)
def test_it_is_never_slower_than_the_schedule_of_a_line_loop_or_wave(name: str, chunks: int, placement: str) -> None:
    costs = uniform_costs(4, chunks, 110, 130, 70, 10, placement=placement)
    other = times_of(name, costs, 8, 4 * share_bytes(chunks))
    found = times_of("graph-zb", costs, 8, max(other.peak_memory_bytes))
    assert found.step_time_ns <= other.step_time_ns


def test_fused_orders_of_a_loop_are_shorter_than_interleaved_1f1b_in_its_memory() -> None:
    costs = uniform_costs(4, 2, 100, 120, 80, 10, placement="loop")
    other = times_of("interleaved-1f1b", costs, 8)
    found = times_of("graph-auto", costs, 8, max(other.peak_memory_bytes))
    assert found.step_time_ns < other.step_time_ns


def test_equal_input_gives_equal_orders() -> None:
    first, second = (build_schedule("graph-zb", UNEVEN, 6, memory_limit_bytes=12, seed=3) for _ in range(2))
    assert first == second


def test_the_best_known_steps_are_met_within_3_percent_without_the_solver() -> None:
    cases = folder("instances", "schedules")
    for row in rows(cases / "best_known.csv"):
        m, limit = int(row["microbatches"]), int(row["memory_limit_bytes_per_rank"])
        times = times_of("graph-zb", read_costs(cases / f"{row['case']}.json", m), m, limit)
        assert times.step_time_ns <= 1.03 * int(row["best_known_ns"]), row
        assert max(times.peak_memory_bytes) <= limit, row


def test_the_solver_proves_what_no_closed_bound_does(tmp_path, capsys) -> None:
    file = tmp_path / "costs.json"
    stages = [
        {"rank": ranks[0], "forward_ns": s.forward_ns, "backward_input_ns": s.backward_input_ns,
         "backward_weight_ns": s.backward_weight_ns, "activation_bytes": 4}
        for s, ranks in zip(UNEVEN.stages, UNEVEN.ranks, strict=True)
    ]  # fmt: skip
    edges = [{"from": e.source, "to": e.target, "p2p_ns": e.p2p_ns} for e in UNEVEN.edges]
    file.write_text(json.dumps({"format": "penstock-costs", "version": 1, "stages": stages, "edges": edges}))
    arguments = ["simulate", "--schedule", "graph-zb", "--costs", str(file), "--microbatches", "4", "--json"]
    answers = []
    for limit in ("0", "300"):
        assert main([*arguments, "--memory-limit", "12", "--time-limit", limit]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    heuristic, proved = answers
    assert proved["status"] == "optimal"
    assert heuristic["status"] == "bounded"
    assert heuristic["lower_bound_ns"] < proved["lower_bound_ns"] == proved["step_time_ns"] <= heuristic["step_time_ns"]
    assert main([*arguments, "--objective", "span"]) == 2


def test_where_the_solver_is_lost_the_known_orders_stay(monkeypatch) -> None:
    known = build_schedule("graph-zb", UNEVEN, 4, memory_limit_bytes=12)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = polished(known, UNEVEN, 12, 2.0)
    assert found.bound_ns == 0
    assert Structure(found.schedule).times(UNEVEN).step_time_ns <= Structure(known).times(UNEVEN).step_time_ns


def test_a_plan_with_split_backwards_keeps_the_memory_limit_and_passes_the_checker() -> None:
    profile = chain(6)
    fused, split = (
        jobs.job(profile, 3, 8, stages=3, data=1, schedule=name, target="executor") for name in ("1f1b", "graph-zb")
    )
    assert check_plan(split, profile.graph) == ()
    assert any("I" in str(action) for order in split.orders for action in order)
    assert split.prediction.step_time_ns <= fused.prediction.step_time_ns
