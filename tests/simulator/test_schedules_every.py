"""Every schedule of the catalogue: legal, the same for two engines, compared in one table; and a user's own orders."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from costmodel.errors import NoPlanFits, UsageError
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from planner.commands import main
from simulator.comparison import Case, standing, standings
from simulator.engine import simulate
from simulator.schedules import SCHEDULES, build_schedule
from simulator.torch_csv import torch_csv
from simulator.uniform import share_bytes, uniform_costs
from tests.properties.schedule_promises import engine_failures, times_of


def test_every_schedule_is_legal_and_two_engines_agree_on_it() -> None:
    assert engine_failures(len(SCHEDULES) * 4) == []


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_the_fold_has_no_bubble_in_its_span_at_equal_times_and_the_memory_of_1f1b(p: int) -> None:
    times = times_of("zb-v", uniform_costs(p, 2, 12, 12, 12, placement="wave"), 3 * p)
    assert times.span_ns == 3 * p * 36
    assert times.step_time_ns == 3 * p * 36 + (p - 1) * 6
    assert max(times.peak_memory_bytes) == p * share_bytes(2)


@pytest.mark.parametrize(("name", "shares"), [("v-half", {4: 3, 8: 5, 16: 9}), ("v-min", {4: 2, 8: 4, 16: 6})])
def test_half_and_a_third_of_the_memory_are_what_the_names_say(name: str, shares: dict[int, int]) -> None:
    for p, most in shares.items():
        times = times_of(name, uniform_costs(p, 2, 12, 14, 10, 1, placement="wave"), 2 * p)
        assert max(times.peak_memory_bytes) <= most * share_bytes(2)


@pytest.mark.parametrize("percent", [45, 60, 75, 100, 140])
def test_the_fold_keeps_any_memory_limit(percent: int) -> None:
    limit = percent * 8 * share_bytes(2) // 100
    costs = uniform_costs(8, 2, 28, 26, 18, 1, placement="wave")
    assert max(times_of("zb-v", costs, 20, memory_limit_bytes=limit).peak_memory_bytes) <= limit


def test_a_limit_below_one_activation_is_refused_by_name() -> None:
    with pytest.raises(NoPlanFits, match=r"zb-v: rank 0 has 3 bytes for activations and needs 4"):
        build_schedule("zb-v", uniform_costs(4, 2, 2, 2, 2, placement="wave"), 4, memory_limit_bytes=3)


@pytest.mark.parametrize(
    ("name", "p", "m", "message"),
    [
        ("dualpipe", 4, 6, "needs 8 micro-batches or more, not 6"),
        ("dualpipe-v", 4, 7, "needs 8 micro-batches or more, not 7"),
        ("chimera", 4, 5, "needs even numbers of ranks and micro-batches"),
        ("chimera", 3, 4, "need one stage a rank and an even number of ranks"),
    ],
)
def test_a_schedule_that_a_case_does_not_admit_says_why(name: str, p: int, m: int, message: str) -> None:
    assert message in standing(name, Case(p, m)).why


def test_slices_go_to_schedules_that_take_them() -> None:
    with pytest.raises(UsageError, match="zb-h1 takes sequences whole, not in 2 slices; seq1f1b takes slices"):
        build_schedule("zb-h1", uniform_costs(2, 1, 1, 1, 1), 2, num_slices=2)


def test_slices_of_causal_attention_take_the_times_that_the_costs_list() -> None:
    stages = (StageCost((1, 2, 1, 2), (1, 2, 1, 2), 0),) * 2
    costs = Costs(stages, (EdgeCost(0, 1),))
    schedule = build_schedule("seq1f1b", costs, 2, num_slices=2)
    assert [str(action) for action in schedule.orders[1]][:4] == ["1F0.0", "1F0.1", "1B0.1", "1F1.0"]
    assert simulate(schedule, costs).compute_ns == 2 * 2 * (3 + 3)


def test_the_table_has_a_row_for_every_schedule_and_marks_what_goes_beyond_the_limit() -> None:
    found = {one.name: one for one in standings(Case(4, 8, memory_limit_shares=3.5))}
    assert list(found) == list(SCHEDULES)
    assert found["v-half"].fits
    assert found["gpipe"].why == "needs 8 activation shares"
    assert found["zb-auto"].peak_activations <= Fraction(7, 2)
    assert found["dualpipe"].copies == 2
    for one in found.values():
        if one.timeline and one.fits:
            assert one.lower_bound_ns <= one.timeline.step_time_ns, one.name


def test_the_command_answers_with_rows_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = tmp_path / "schedules.svg"
    arguments = ["schedules", "--ranks", "2", "--microbatches", "4", "--chart", str(chart), "--json"]
    assert main(arguments) == 0
    rows = {row["schedule"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["1f1b"]["step_time_ns"] == 15_000
    assert rows["1f1b"]["messages"] == 8
    assert rows["seq1f1b"]["communication_volume"] == 8
    first = chart.read_bytes()
    assert main(arguments) == 0
    assert chart.read_bytes() == first


def test_a_csv_of_orders_is_simulated_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(torch_csv(build_schedule("dualpipe-v", uniform_costs(4, 2, 1, 1, 1, placement="wave"), 8)))
    assert main(["simulate", "--schedule", str(file), "--microbatches", "8", "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert main(["simulate", "--schedule", "dualpipe-v", "--ranks", "4", "--microbatches", "8", "--json"]) == 0
    ours = json.loads(capsys.readouterr().out)
    assert [own[key] for key in ("step_time_ns", "span_ns")] == [ours[key] for key in ("step_time_ns", "span_ns")]
    assert own["peak_activations"] == ours["peak_activations"]
    file.write_text("0F0,0B0\n1F0,0B0\n")
    assert main(["simulate", "--schedule", str(file), "--microbatches", "1"]) == 7
