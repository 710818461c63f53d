"""Prices, cost and days of a run, and penstock buy: sums, what is refused, and offers that no other undercuts."""

import json
from dataclasses import dataclass
from itertools import product
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.errors import InvalidInput, UsageError
from costmodel.machines.typical import typical_cluster
from costmodel.model.profile import write_profile
from planner.commands import main
from planner.question.prices import Prices, read_prices
from planner.report.machines_to_buy import best_offers
from tests.support.described_models import described

LISTED = """source = "a list"
date = "2026-11-01"
[price_per_hour]
h100-sxm-80 = 2.5
a100-sxm-80 = 1.4
"""


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "prices.toml"
    path.write_text(LISTED)
    return str(path)


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.json"
    write_profile(path, described("gpt2"))
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], profile: str, *words: str) -> tuple[int, dict[str, object]]:
    out = str(Path(profile).with_name("plan.json"))
    code = main(["plan", profile, "--devices", "4", "--batch", "32", "--time-limit", "0.3", "-o", out,
                 "--json", *words])  # fmt: skip
    return code, json.loads(capsys.readouterr().out)


def test_cost_and_days_of_a_run_follow_from_step_price_and_tokens(capsys, profile, prices) -> None:
    _, answer = planned(capsys, profile, "--price", prices, "--tokens", "300B", "--deadline", "30", "--budget", "1")
    cost, step_ns = answer["cost"], answer["step_time_ns"]
    tokens = round(answer["tokens_per_s"] * step_ns / 1e9)
    assert cost["per_step"] == pytest.approx(answer["devices_used"] * 2.5 * step_ns / 3.6e12)
    assert cost["per_billion_tokens"] == pytest.approx(cost["per_step"] * 1e9 / tokens)
    assert cost["days"] == pytest.approx(ceil(300e9 / tokens) * step_ns / 8.64e13)
    assert cost["run"] == pytest.approx(cost["per_step"] * ceil(300e9 / tokens))
    assert (cost["price_source"], cost["price_date"]) == ("a list", "2026-11-01")
    assert (cost["meets_deadline"], cost["within_budget"]) == (cost["days"] <= 30, False)


def test_without_price_or_tokens_nothing_is_said_of_cost(capsys, profile) -> None:
    assert planned(capsys, profile)[1]["cost"] is None
    cost = planned(capsys, profile, "--tokens", "1B")[1]["cost"]
    assert cost["days"] > 0
    assert cost["per_step"] is cost["run"] is cost["price_source"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "5"), "--tokens"),
        (("--budget", "5", "--tokens", "1B"), "--price"),
        (("--price", "b200-sxm-180=4"), "the cluster's devices are"),
        (("--price", "h100-sxm-80=0"), "above 0"),
        (("--price", "h100-sxm-80=nan"), "above 0"),
        (("--price", "=3"), "above 0"),
        (("--price", "gone.toml"), "no such file"),
        (("--tokens", "many"), "15T"),
        (("--simplicity", "100"), "below 100"),
    ],
)
def test_a_price_or_run_that_cannot_be_meant_is_refused(capsys, profile, words, said) -> None:
    code, answer = planned(capsys, profile, *words)
    assert code in (2, 3)
    assert said in answer["error"]


@pytest.mark.parametrize(
    "text", ["price_per_hour = 3", '[price_per_hour]\nh100-sxm-80 = "x"', "[price_per_hour]\nh100-sxm-80 = 0", "x = 1"]
)
def test_a_file_of_prices_that_breaks_its_form_is_refused(tmp_path, text) -> None:
    (tmp_path / "prices.toml").write_text(text)
    with pytest.raises(InvalidInput):
        read_prices([str(tmp_path / "prices.toml")])


def test_a_later_price_counts_and_prices_say_all_their_sources(prices) -> None:
    found = read_prices([prices, "h100-sxm-80=3"])
    assert found.of("h100-sxm-80") == 3
    assert found.of("a100-sxm-80") == 1.4
    assert found.source == "a list, --price"


def test_a_model_whose_samples_are_no_tokens_has_no_days_and_is_not_bought_for(capsys, tmp_path, prices) -> None:
    assert main(["buy", "zoo:unet3d:small", "--tokens", "1B", "--price", prices, "--json"]) == 2
    assert "not made of tokens" in capsys.readouterr().out


def offers_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code = main(
        ["buy", "llama3-8b", "--tokens", "1B", "--batch-tokens", "65536", "--time-limit", "0.3", "--json", *words]
    )
    return code, json.loads(capsys.readouterr().out)


def test_bought_machines_keep_what_was_asked_and_cost_what_their_devices_do(capsys, prices) -> None:
    _, answer = offers_of(capsys, "--price", prices)
    rows = answer["rows"]
    assert {row["device"] for row in rows} == {"h100-sxm-80", "a100-sxm-80"}
    assert [row["cost"] for row in rows] == sorted(row["cost"] for row in rows)
    hourly = {"h100-sxm-80": 2.5, "a100-sxm-80": 1.4}
    for row in rows:
        assert row["cost"] == pytest.approx(row["devices"] * hourly[row["device"]] * row["days"] * 24)
        assert row["standing"] in ("measured", "fitted", "datasheet")
    middle = sorted(row["days"] for row in rows)[len(rows) // 2]
    _, fewer = offers_of(capsys, "--price", prices, "--deadline", str(middle))
    assert fewer["rows"]
    assert all(row["days"] <= middle for row in fewer["rows"])


def test_what_no_machine_keeps_is_told_with_what_comes_next(capsys, prices) -> None:
    code, answer = offers_of(capsys, "--price", prices, "--deadline", "0.00001")
    assert code == 4
    assert "the soonest run is on" in answer["error"]


def test_prices_of_a_device_that_the_catalogue_has_not_are_refused(capsys) -> None:
    code, answer = offers_of(capsys, "--price", "h101=3")
    assert code == 3
    assert "h101" in answer["error"]


@dataclass(frozen=True, eq=False)
class Row:
    """An offer of given cost and days."""

    device: str
    money: float
    days: float


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_no_offer_is_dropped_that_is_the_best_of_any_wish_in_money_and_days(known) -> None:
    offers = [Row(*each) for each in known]
    kept = best_offers(offers)
    for money, days in product((0, 1, 3), repeat=2):
        if money or days:
            worth = [money * each.money + days * each.days for each in kept]
            assert min(worth) == min(money * each.money + days * each.days for each in offers)
    assert {each.device for each in kept} == {each.device for each in offers}


def test_prices_of_devices_that_are_not_there_are_refused_only_where_said_one_by_one() -> None:
    cluster = typical_cluster("h100-sxm-80", 8)
    assert Prices({"other": 3.0}).applied_to(cluster) == cluster
    with pytest.raises(UsageError):
        Prices({"other": 3.0}, named=frozenset({"other"})).applied_to(cluster)
