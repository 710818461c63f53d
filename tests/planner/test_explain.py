"""`penstock explain`: what it says of plans small enough to follow by hand (`tests.support.small_plan`)."""

import json
from dataclasses import replace

import pytest

from costmodel.machines.cluster_parts import Host
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import StageCost
from planner.commands import answer, main
from planner.plan import Batch, write_plan
from planner.plan.rung import rung
from planner.report.why.explanation import Explanation
from planner.report.why.what_if import what_ifs
from tests.support.small_plan import COST, PLAN, with_edge, with_stage


def changes(plan):
    return {each.change: each.step_time_ns for each in what_ifs(plan)}


def test_the_critical_path_by_stage_and_kind_adds_up_to_the_step():
    path = {" ".join(map(str, key)): value for key, value in Explanation(PLAN).path.items()}
    assert path == {
        "action 0 -1 B": (20, 1),
        "action 0 -1 F": (10, 1),
        "action 1 -1 B": (20, 1),
        "action 1 -1 F": (10, 1),
        "action 3 -1 B": (40, 2),
        "action 3 -1 F": (20, 2),
        "transfer 0 1 SEND_F": (1, 1),
        "transfer 1 0 SEND_B": (1, 1),
        "transfer 1 3 SEND_F": (1, 1),
        "transfer 3 1 SEND_B": (1, 1),
    }
    assert sum(ns for ns, _ in path.values()) == 124


def test_a_cut_is_exposed_as_far_as_the_critical_path_waits_for_it():
    cuts = Explanation(PLAN).to_json()["cuts"]
    assert [(c["from"], c["to"], c["bytes"], c["exposed_ns"], c["hidden"]) for c in cuts] == [
        (0, 1, 2, 2, False),
        (0, 2, 2, 0, True),
        (1, 3, 2, 2, False),
        (2, 3, 2, 0, True),
    ]


def test_idle_time_by_cause_adds_up_to_the_bubble_of_all_ranks():
    found = Explanation(PLAN)
    assert sum(found.idle.values()) == 4 * 124 - 4 * 2 * 30
    assert list(found.idle.values()) == sorted(found.idle.values(), reverse=True)


def test_idle_time_and_memory_of_ranks_in_lockstep_count_for_each_of_them():
    pairs = tuple(
        replace(stage, ranks=(2 * i, 2 * i + 1), config=StageConfig(tensor=2)) for i, stage in enumerate(PLAN.stages)
    )
    plan = replace(
        PLAN,
        cluster=replace(PLAN.cluster, hosts=(Host("cpu", 8),)),
        stages=pairs,
        orders=tuple(order for order in PLAN.orders for _ in range(2)),
        prediction=replace(PLAN.prediction, peak_memory_bytes=(25,) * 8, peak_memory_upper_bytes=(26,) * 8),
    )
    found = Explanation(plan)
    assert {cause: 2 * ns for cause, ns in Explanation(PLAN).idle.items()} == found.idle
    assert found.to_json()["cuts"] == Explanation(PLAN).to_json()["cuts"]
    assert found.stage_json(3)["memory"] == {
        "activations": 8,
        "activations_per_microbatch": 8,
        "in_flight": 1,
        "peak_bytes": 21,
        "upper_bytes": 26,
    }


def test_memory_stands_term_by_term_with_the_microbatches_in_flight():
    plan = with_stage(PLAN, 0, cost=replace(COST, memory_terms=(("parameters", 3), ("gradients", 2))))
    assert Explanation(plan).in_flight == (2, 2, 2, 1)
    assert Explanation(plan).stage_json(0)["memory"] == {
        "parameters": 3,
        "gradients": 2,
        "activations": 16,
        "activations_per_microbatch": 8,
        "in_flight": 2,
        "peak_bytes": 25,
        "upper_bytes": 25,
    }


def test_each_change_is_simulated_alone():
    """Stage 0 saves 1 + 2 ns in 0F0 and 0B1, faster links 4 x 1 ns (1 // 2 = 0).

    Halves: 3F0 starts at 12, four times 15 ns follow, 1 + 10 + 1 + 10 to the end; 3F2 and 3F3 start 2 ns late each,
    because stage 1 takes its third forward behind 1B0 (28-38), and stage 0 its fourth behind 0B0.
    """
    assert changes(PLAN) == {
        "stage 0, the one with most work a rank, 10 % faster": 121,
        "work divided evenly among the stages": 124,
        "transfers between stages twice as fast": 120,
        "twice as many micro-batches, each half the time, transfers as long as before": 98,
    }


@pytest.mark.parametrize(
    ("cost", "change", "step_ns"),
    [
        (replace(COST, recompute_ns=10), "no forward run again", 124),
        (replace(COST, optimizer_ns=7), "optimizer's step for nothing", 124),
    ],
)
def test_changes_are_named_only_where_they_apply(cost: StageCost, change: str, step_ns: int):
    """A recompute is inside B; the plan's orders have no OPT, so that its time changes nothing."""
    plan = PLAN
    for index in range(4):
        plan = with_stage(plan, index, cost=cost)
    assert change not in changes(PLAN)
    assert changes(plan)[change] == step_ns


def test_an_odd_microbatch_is_not_split():
    plan = replace(PLAN, batch=Batch(2, 1, 2))
    assert not any(change.startswith("twice as many") for change in changes(plan))


def test_orders_that_their_name_does_not_make_are_not_made_again():
    assert not any(change.startswith("twice as many") for change in changes(replace(PLAN, schedule="by hand")))


def test_uneven_work_is_divided_evenly():
    plan = with_stage(PLAN, 3, cost=replace(COST, forward_ns=30, backward_input_ns=30, backward_weight_ns=30))
    found = changes(plan)
    assert found["work divided evenly among the stages"] == Explanation(even(plan)).step_time_ns
    assert next(iter(found.values())) == min(found.values())


def even(plan):
    """All stages take the mean of 30, 30, 30 and 90 ns: 45, a third each in F, I and W."""
    for index in range(4):
        plan = with_stage(plan, index, cost=replace(COST, forward_ns=15, backward_input_ns=15, backward_weight_ns=15))
    return plan


def test_rivals_stand_with_their_distance(tmp_path, capsys):
    write_plan(tmp_path / "plan.json", PLAN)
    assert main(["explain", str(tmp_path / "plan.json"), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["next_best"] == [{"name": "chain", "step_time_ns": 150, "slower": 150 / 124 - 1}]
    assert (body["strategy"], body["step_time_ns"], body["status"]) == ("graph-pipeline", 124, "bounded")
    assert body["changes"][0]["gain"] == 1 - body["changes"][0]["step_time_ns"] / 124
    assert [stage["critical_path_ns"] for stage in body["stages"]] == [30, 30, 0, 60]


def test_people_read_few_lines(tmp_path, capsys):
    write_plan(tmp_path / "plan.json", PLAN)
    assert main(["explain", str(tmp_path / "plan.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("graph-pipeline, 4 stages on 4 ranks, graph-1f1b, 2 micro-batches of 2")
    assert lines[3] == "next best: chain 150 ns (+21.0%)"
    assert len(lines) == 7 + 5 + 5 + 5 + 5 + 1


def test_a_configuration_is_told_where_it_is_not_the_usual_one(tmp_path, capsys):
    plan = with_stage(PLAN, 0, config=StageConfig(zero=1, recompute="full"))
    write_plan(tmp_path / "plan.json", replace(plan, assumptions=replace(plan.assumptions, estimated=("roofline",))))
    assert main(["explain", str(tmp_path / "plan.json")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith("2 micro-batches of 2, times estimated")
    assert "zero 1 recompute full  stem .. stem (1)" in out[8]
    assert "-  left .. left (1)" in out[9]


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        (PLAN, "graph-pipeline"),
        (with_edge(PLAN, 0, target=3), "graph-pipeline"),
        (
            replace(PLAN, edges=tuple(replace(e, source=i, target=i + 1) for i, e in enumerate(PLAN.edges[:3]))),
            "pipeline",
        ),
    ],
)
def test_stages_in_one_line_are_a_pipeline(plan, name):
    assert rung(plan) == name


def test_what_takes_long_is_said_before_it_is_done(capsys, monkeypatch):
    answer.say_size(PLAN, PLAN)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(answer, "LOOK_NS", 10**9)
    answer.say_size(PLAN, PLAN)
    number = 2 * sum(map(len, PLAN.lead_orders))
    assert capsys.readouterr().err.startswith(f"{number} actions are simulated again and told apart: about {number} s")
