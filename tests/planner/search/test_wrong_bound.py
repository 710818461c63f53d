"""A lower bound above the plan is a bug of ours, which costs the user the bound and never the plan."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costmodel.model.profile import write_profile
from planner.answer.decide import plan
from planner.checker import check_plan
from planner.commands import main
from planner.plan import read_plan
from planner.plan.limited_by import LimitedBy
from planner.search.bounders.family_bounds import FamilyBounds
from planner.search.state.free_bounds import FreeBounds
from tests.support.pipelines import pipelines
from tests.support.random_profiles import branches

TOO_HIGH = 10**15
Break = Callable[[pytest.MonkeyPatch], None]


def of_the_search(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FamilyBounds, "least_ns", property(lambda _: TOO_HIGH))


def of_every_family(patch: pytest.MonkeyPatch) -> None:
    for name in ("bound_ns", "closed_form_ns"):
        patch.setattr(FreeBounds, name, lambda *_: TOO_HIGH)


@pytest.mark.parametrize("planner", ["ours", "chain", "single", "uniform"])
@pytest.mark.parametrize("wrong", [of_the_search, of_every_family])
def test_a_bound_above_the_plan_leaves_the_plan_without_a_bound(
    monkeypatch: pytest.MonkeyPatch, wrong: Break, planner: str
) -> None:
    profile = branches(2, 3)
    problem = pipelines(profile, 2, 8, planner=planner, deterministic_limit=0.0)
    right = plan(problem)
    wrong(monkeypatch)
    found = plan(problem)
    if wrong is of_the_search and planner == "uniform":
        assert found == right  # it asks nothing of the search
        return
    assert check_plan(found, profile.graph) == ()
    assert (found.search.status, found.search.lower_bound_ns, found.search.gap) == ("heuristic", None, None)
    assert found.search.limited_by == LimitedBy.BROKEN_BOUND
    assert found.search.objective == found.prediction.step_time_ns


def test_the_command_writes_a_plan_whose_bound_was_wrong_and_exits_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profile(tmp_path / "profile.json", branches(2, 3))
    of_the_search(monkeypatch)
    words = ["plan", "profile.json", "--devices", "2", "--batch", "8", "--deterministic-limit", "0.01", "--json"]
    monkeypatch.chdir(tmp_path)
    assert main([*words, "-o", "plan.json"]) == 1
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (answer["lower_bound_ns"], answer["gap"], answer["limited_by"]) == (None, None, LimitedBy.BROKEN_BOUND)
    assert read_plan(tmp_path / "plan.json").search.objective == answer["step_time_ns"]
