"""Split backwards and whole ones: found under ``auto``, bounded, dear where measured so, and what they gain."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest

from costmodel.model.profile import Profile, write_profile
from costmodel.model.whole_model import SplitRatios, WholeModelMeasurements
from planner.answer.decide import plan
from planner.commands import main
from planner.plan import Plan
from planner.question.problem import Problem, Report
from planner.report.whatif.ablation import ablation
from planner.search.space.open_choices import allows_split_backward
from tests.support.pipelines import PIPELINES, pipelines
from tests.support.random_profiles import branches, chain, random_profile, u_net

OPEN = replace(PIPELINES, chunks=None)
PROFILES = {"branches": branches(4, 6), "chain": chain(12), "U-Net": u_net(6), "random": random_profile(Random(5), 16)}


def planned(profile: Profile, schedule: str) -> Plan:
    return plan(pipelines(profile, 4, 8, 1, deterministic_limit=0.05, schedule=schedule))


@cache
def known(name: str, schedule: str) -> Plan:
    return planned(PROFILES[name], schedule)


@pytest.mark.parametrize("name", PROFILES)
def test_auto_is_never_above_the_best_of_either_kind_of_backward(name: str) -> None:
    """Naming the schedule finds nothing better by more than the two searches differ anyway."""
    found = known(name, "auto").search
    alone = (known(name, schedule) for schedule in ("graph-auto", "graph-zb"))
    best = min(each.search.best_step_time_ns for each in alone)
    assert found.best_step_time_ns <= best * 1.01
    assert found.lower_bound_ns is not None
    assert found.lower_bound_ns <= min(best, found.best_step_time_ns)


def test_an_answer_in_halves_is_bounded_by_its_own_family() -> None:
    """Four towers on four devices with few micro-batches: halves save waits, and the bound knows that they may."""
    whole = known("branches", "graph-auto").search
    found = known("branches", "auto")
    assert found.schedule == "graph-zb"
    assert found.search.best_step_time_ns < 0.95 * whole.best_step_time_ns
    assert found.search.lower_bound_ns is not None
    assert whole.lower_bound_ns is not None
    assert found.search.lower_bound_ns < whole.lower_bound_ns
    assert "whole backwards" not in found.search.scope


@pytest.mark.parametrize(("ratio", "said"), [(1.1, True), (1.15, False)])
def test_dear_halves_are_not_chosen_and_bounded_beside_the_gap(ratio: float, said: bool) -> None:
    """Where their bound is no better than the answer there is nothing to say."""
    dear = (SplitRatios(ratio, ratio),) * 3
    profile = replace(PROFILES["branches"], whole=WholeModelMeasurements((1, 2, 4), split=dear))
    found = planned(profile, "auto")
    assert found.schedule != "graph-zb"
    text = "whole backwards: of split ones it is only proved that they take at least"
    assert (text in found.search.scope) == said


@pytest.mark.parametrize(
    "options",
    [{"schedule": "1f1b"}, {"schedule": "auto", "exact": True}, {"schedule": "auto", "target": "megatron"}],
)
def test_halves_are_left_alone_where_they_are_not_asked_for(options: dict[str, object]) -> None:
    assert not allows_split_backward(pipelines(PROFILES["chain"], 2, 4, 1, **options))


def test_each_means_ranges_over_what_the_one_before_did() -> None:
    problem = pipelines(branches(4, 3), 4, 8, None, schedule="auto", deterministic_limit=0.0, space=OPEN)
    found = ablation(problem, plan)
    steps = [row.step_time_ns for row in found.rows]
    assert steps == sorted(steps, reverse=True)
    assert [row["means"] for row in found.to_json()["rows"]] == [  # type: ignore[index,attr-defined]
        "stages in a line", "branches side by side", "larger micro-batches", "split backward",
        "stages that share devices",
    ]  # fmt: skip
    gain = 1.0
    for factor in found.gains:
        gain *= factor
    assert found.to_json()["gain"] == pytest.approx(gain)
    assert found.rows[1].plan.batch.microbatch_size == found.rows[0].plan.batch.microbatch_size
    assert found.gains[1] > 1.05  # four towers need not wait for each other


def test_a_row_that_is_interrupted_is_left_out() -> None:
    """What a cut-short search found is no answer to its row: its gain, and its bound, would be false."""
    asked: list[Problem] = []

    def interrupted_third(problem: Problem, report: Report | None) -> Plan:
        asked.append(problem)
        found = plan(problem, report)
        return replace(found, search=replace(found.search, limited_by="interrupted")) if len(asked) == 3 else found

    problem = pipelines(PROFILES["chain"], 2, 4, None, schedule="auto", deterministic_limit=0.0, space=OPEN)
    found = ablation(problem, interrupted_third)
    assert (len(asked), len(found.rows), found.interrupted) == (3, 2, True)
    assert found.to_json()["interrupted"] is True


def test_the_command_answers_with_rows_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, chart = tmp_path / "profile.json", tmp_path / "gains.svg"
    write_profile(profile, branches(2, 4))
    words = ["ablation", str(profile), "--devices", "2", "--batch", "4", "--deterministic-limit", "0", "--json"]
    assert main([*words, "--chart", str(chart)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["rows"]) == 5
    assert told["gain"] >= 1
    assert "branches side by side" in chart.read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--schedule", "1f1b"], "--schedule fixes what an ablation opens row by row"),
        (["--planner", "chain"], "--planner fixes"),
        (["--microbatch-size", "1"], "--microbatch-size fixes"),
        (["--chunks", "1"], "--chunks fixes"),
        (["--target", "megatron"], "--target megatron runs lines alone"),
        (["--chart", "gains.txt"], "gains.txt"),
    ],
)
def test_a_flag_that_fixes_what_a_row_opens_is_refused(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profile(tmp_path / "profile.json", chain(4))
    code = main(["ablation", str(tmp_path / "profile.json"), "--devices", "2", "--batch", "4", *flags, "--json"])
    assert (code, message in json.loads(capsys.readouterr().out)["error"]) == (2, True)
