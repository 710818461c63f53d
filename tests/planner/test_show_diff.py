"""`penstock show` and `penstock diff`: what a plan file says, and what two of them do differently, by themselves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.commands import main
from planner.plan import Plan, write_plan
from planner.report.comparison.moved import Moved
from tests.support.small_plan import GRAPH, PLAN, with_order, with_stage


def written(folder: Path, *plans: Plan) -> list[str]:
    paths = []
    for number, plan in enumerate(plans):
        paths.append(str(folder / f"{number}.json"))
        write_plan(paths[-1], plan)
    return paths


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, object]:
    assert main([*words, "--json"]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_show_says_what_stands_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = written(tmp_path, PLAN)
    body = asked(capsys, "show", path)
    expected = {
        "strategy": "graph-pipeline",
        "devices_used": 4,
        "schedule": "graph-1f1b",
        "microbatches": 2,
        "microbatch_size": 2,
        "step_time_ns": 124,
        "peak_memory_bytes": [25, 25, 25, 21],
        "memory_limit_bytes": [1000] * 4,
        "lower_bound_ns": 100,
        "scope": "by hand",
        "runs_on": ["executor"],
    }
    assert {key: body[key] for key in expected} == expected
    assert main(["show", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("diamond (5 operators), graph-pipeline on 4 ranks of cpu")
    assert "memory       25 bytes of 1000 bytes (2.50 %) on rank 0, at most 25 bytes" in lines
    assert sum("join .. loss" in line or "join (2)" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("limit", "device_bytes", "shown"), [(None, 1000, 1000), (400, 1000, 400), (2000, 1000, 1000), (None, 0, None)]
)
def test_the_limit_is_what_was_given_and_never_more_than_the_device_has(
    limit: int | None, device_bytes: int, shown: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = replace(PLAN.cluster.devices[0], memory_bytes=device_bytes)
    plan = replace(
        PLAN,
        cluster=replace(PLAN.cluster, devices=(device,)),
        provenance={**PLAN.provenance, "options": {"memory_limit_bytes": limit}},
    )
    (path,) = written(tmp_path, plan)
    assert asked(capsys, "show", path)["memory_limit_bytes"] == [shown] * 4


MOVED = with_stage(with_stage(PLAN, 2, operators=("right", "join")), 3, operators=("loss",))
FASTER = replace(
    PLAN, prediction=replace(PLAN.prediction, step_time_ns=100), search=replace(PLAN.search, objective=100)
)


def test_diff_of_a_plan_and_itself_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = written(tmp_path, PLAN, PLAN)
    assert asked(capsys, "diff", first, second)["same"] is True
    assert main(["diff", first, second]) == 0
    assert capsys.readouterr().out == "the plans do the same\n"


def test_diff_says_what_moved_without_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = asked(capsys, "diff", *written(tmp_path, PLAN, MOVED))
    assert body["same"] is False
    assert body["moved"] == Moved(PLAN, MOVED, GRAPH).to_json()
    assert body["moved"]["between_stages"] == [{"from": 3, "to": 2, "operators": ["join"]}]  # type: ignore[index]


def test_diff_puts_figures_assumptions_machines_and_orders_beside_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(
        FASTER,
        assumptions=replace(PLAN.assumptions, optimizer="adam"),
        cluster=replace(PLAN.cluster, groups=(replace(PLAN.cluster.groups[0], latency_ns=500),)),
    )
    other = with_order(other, 3, lambda order: order.append(order.pop()))
    swapped = with_order(other, 1, lambda order: order.insert(0, order.pop()))
    paths = written(tmp_path, PLAN, swapped)
    body = asked(capsys, "diff", *paths)
    assert body["figures"]["step_time_ns"] == [124, 100]  # type: ignore[index]
    assert body["assumptions"] == {"optimizer": ["none", "adam"]}
    assert body["cluster"] == {"link.local.latency_us": [0.001, 0.5]}
    assert body["orders"] == 1
    assert main(["diff", *paths]) == 0
    out = capsys.readouterr().out
    assert "assumptions  optimizer none to adam" in out
    assert "cluster      link.local.latency_us 0.001 to 0.5" in out
    assert "-19.35%" in out


def test_plans_of_two_models_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = asked(capsys, "diff", *written(tmp_path, PLAN, replace(PLAN, fingerprint="other")), code=6)
    assert "penstock compare takes any" in str(body["error"])


@pytest.mark.parametrize(
    ("other", "key", "pair"),
    [
        (with_stage(PLAN, 1, cost=replace(PLAN.stages[1].cost, optimizer_ns=7)), "stage.1.optimizer_ns", 7),
        (replace(PLAN, runs_on=("executor", "megatron")), "runs_on", ["executor", "megatron"]),
        (replace(PLAN, training=replace(PLAN.training, dtype="bfloat16")), "training.dtype", "bfloat16"),
        (replace(PLAN, edges=(replace(PLAN.edges[0], size_bytes=9), *PLAN.edges[1:])), "edge.0-1.bytes", 9),
    ],
)
def test_plans_that_differ_in_a_price_alone_do_not_do_the_same(
    other: Plan, key: str, pair: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = asked(capsys, "diff", *written(tmp_path, PLAN, other))
    assert body["same"] is False
    prices = body["prices"]
    assert isinstance(prices, dict)
    assert list(prices) == [key]
    assert prices[key][1] == pair
