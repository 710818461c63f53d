"""Which strategy for which model (`benchmarks.advice`), in small: rules, rungs searched again, what is said of them."""

from pathlib import Path

import pytest

from benchmarks import advice
from planner import Space


@pytest.mark.parametrize(
    ("place", "names", "degrees"),
    [
        ("1 H100", [], []),
        ("8 H100", [advice.DATA, advice.ZERO, advice.TENSOR], [(1, 8, 1), (1, 8, 1), (1, None, 8)]),
        (
            "64 H100",
            [advice.DATA, advice.ZERO, advice.TENSOR, advice.PIPELINE],
            [(1, 64, 1), (1, 64, 1), (1, None, 8), (2, None, 8)],
        ),
    ],
)
def test_rules_of_thumb_fix_what_they_say(
    place: str, names: list[str], degrees: list[tuple[int, int | None, int]]
) -> None:
    found = advice.rules(advice.CLUSTERS[place])
    assert list(found) == names
    assert [(each.stages, each.data, each.tensor) for each, *_ in found.values()] == degrees


def test_pipelines_across_eight_hosts_have_two_four_or_eight_stages() -> None:
    spaces = advice.rules(advice.CLUSTERS["64 H100"])[advice.PIPELINE]
    assert [space.stages for space in spaces] == [2, 4, 8]


@pytest.mark.parametrize(
    ("strategy", "space"),
    [
        ("single", Space(stages=1, data=1, tensor=1, context=1, expert=1, zero=0, offload="none")),
        ("zero-2+tensor", Space(stages=1, context=1, expert=1, zero=2, offload="none")),
        ("data-parallel+graph-pipeline", Space(tensor=1, context=1, expert=1, zero=0, offload="none")),
        ("offload+expert", Space(stages=1, data=1, tensor=1, context=1, zero=0)),
    ],
)
def test_a_rung_is_searched_again_with_all_that_its_name_leaves_out_fixed(strategy: str, space: Space) -> None:
    assert advice.space_of(strategy) == space


def test_a_rule_is_judged_where_it_fits_and_data_parallel_does_not() -> None:
    ratios = {advice.DATA: "no", advice.ZERO: 1.2, advice.TENSOR: 1.005, advice.PIPELINE: "not priced"}
    assert [rule for rule in ratios if advice.applies({"rules": ratios}, rule)] == [advice.ZERO, advice.TENSOR]
    assert advice.thumb({"rules": ratios}) == 1.2
    fits = {**ratios, advice.DATA: 1.3}
    assert [rule for rule in ratios if advice.applies({"rules": fits}, rule)] == [advice.DATA]
    assert not advice.applies({"refused": "nothing fits"}, advice.DATA)
    row = {"model": "m", "cluster": "c", "strategy": "tensor", "rules": ratios}
    assert any("m on c: takes 1.200 times as long as tensor" in line for line in advice.summary([row]))


def test_one_case_is_answered_searched_again_and_drawn(tmp_path: Path) -> None:
    row = advice.Case("zoo:yolo:small", "8 H100", 1.0).row()
    assert row["strategy"] == "data-parallel"
    assert row["rules"][advice.DATA] <= advice.NEAR
    assert 1 <= len(row["next"]) <= 2
    assert row["rules"][advice.TENSOR] == "not priced"  # operators of captured models do not say how they divide
    assert advice.text_of(row).count("|") == 11
    assert next(advice.summary([row])).endswith("in 1 of the 1 cases in which it applies and fits")
    assert advice.faster({**row, "best_over": 1.0, "next": {"zero-1": [0.98, "zero-1"]}}) == ["zero-1"]
    refused = {"model": "zoo:yolo", "cluster": "1 H100", "refused": "no plan fits"}
    advice.draw([row, refused], str(tmp_path / "advice.svg"))
    assert "data-parallel" in (tmp_path / "advice.svg").read_text()
