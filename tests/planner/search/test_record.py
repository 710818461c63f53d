"""The record of a search (`planner.search.state.record`): what is credited to whom, and what of it an answer says."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from costmodel.model.profile import write_profile
from planner import Effort, Problem, Space
from planner.answer.decide import plan
from planner.candidate.make import make
from planner.candidate.upper_memory import upper_bytes
from planner.commands import main
from planner.plan import SearchResult
from planner.plan.limited_by import WORDS, LimitedBy
from planner.search.loop import PortfolioSearch
from planner.search.state.record import LOWEST_MEMORY, SearchRecord, running_cpu_s
from tests.support.described_models import described

SEARCHED = {
    "families", "families_seen", "first_plan_s", "first_plan_cpu_s", "first_plan_ns", "incumbents", "subsolvers",
    "dropped", "only_fits",
}  # fmt: skip


def asked(**options: Any) -> Problem:
    """A small question whose search no clock ends."""
    known = {"microbatch_size": 4, "schedule": "1f1b", "space": Space(tensor=1, context=1, chunks=1), "max_stages": 2}
    return Problem(described("gpt2"), None, 2, 32, effort=Effort(300.0, 0.0), **{**known, **options})


def test_an_improvement_is_credited_to_the_innermost_subsolver_that_is_at_work() -> None:
    record = SearchRecord()
    with record.active("shapes", "first"):
        record.met(200)
        with record.active("cuts", "improve"):
            record.met(150)
            record.met(150)
            record.met(160)
        record.met(120)
    with record.active("cuts", "improve"):
        record.met(90)
    told = [(each.best_step_time_ns, each.subsolver) for each in record.incumbents]
    assert told == [(200, "shapes"), (150, "cuts"), (120, "shapes"), (90, "cuts")]
    gains = {name: each.to_json()["gain_percent"] for name, each in record.subsolvers.items()}
    assert gains == {"shapes": pytest.approx(20), "cuts": pytest.approx(100 * (1 - 150 / 200 * 90 / 120))}
    assert record.to_json()["first_plan_ns"] == 200


@pytest.mark.parametrize(
    ("phases", "only_fits"),
    [
        ([(LOWEST_MEMORY, "first")], True),
        ([(LOWEST_MEMORY, "first"), ("cuts", "improve")], True),
        ([(LOWEST_MEMORY, "first"), ("shapes", "first"), ("cuts", "improve")], False),
        ([("shapes", "first"), ("cuts", "improve")], False),
        ([("cuts", "improve")], False),
        ([], False),
    ],
)
def test_a_plan_only_fits_until_another_shape_is_better_than_what_holds_least(
    phases: list[tuple[str, Any]], only_fits: bool
) -> None:
    record = SearchRecord()
    for number, (name, kind) in enumerate(phases):
        with record.active(name, kind):
            record.met(100 - number)
    assert record.only_fits is only_fits


def test_a_search_that_must_take_another_plan_begins_its_steps_anew() -> None:
    record = SearchRecord()
    record.met(100)
    record.forget()
    record.met(130)
    assert [each.best_step_time_ns for each in record.incumbents] == [100, 130]


def test_a_running_process_counts_and_counts_once_when_it_has_ended() -> None:
    record = SearchRecord()
    process = subprocess.Popen([sys.executable, "-c", "while True: sum(range(10**5))"])
    try:
        record.watch("other", "prove", lambda: process.pid if process.returncode is None else None)
        while running_cpu_s(process.pid) < 0.2:
            pass
        assert record.cpu_s >= 0.2
    finally:
        process.kill()
        process.wait()
    known_s = record.subsolvers["other"].cpu_s
    assert known_s >= 0.2
    total_s = record.cpu_s
    assert record.subsolvers["other"].cpu_s == known_s
    own_s = total_s - known_s
    assert own_s >= 0
    assert sum(each.read_s for each in record._watched) == 0  # what ended is in this process's own account alone


def test_a_part_is_credited_with_what_it_met_before_it_raised() -> None:
    record = SearchRecord()

    def interrupted() -> None:
        with record.active("part", "improve"):
            record.met(7)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    record.met(6)
    assert [each.subsolver for each in record.incumbents] == ["part", "search"]


def test_a_search_records_what_it_met_and_every_family_that_it_saw() -> None:
    search = PortfolioSearch(asked(), None)
    outcome = search.run()
    told = search.state.record.to_json()
    assert outcome.pool.record is search.state.record
    assert set(told) == SEARCHED
    steps = [each.best_step_time_ns for each in search.state.record.incumbents]
    assert all(after < before for before, after in pairwise(steps))
    assert steps[-1] == outcome.pool.best.step_time_ns
    assert search.state.record.families == len(outcome.prepared.families.all) == search.state.record.families_seen
    assert {each.subsolver for each in search.state.record.incumbents} <= set(search.state.record.subsolvers)
    assert 0 < search.state.record.incumbents[0].cpu_s <= search.state.record.cpu_s


def test_the_command_says_what_was_searched_and_the_plan_file_holds_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profile(tmp_path / "profile.json", described("gpt2"))
    monkeypatch.chdir(tmp_path)
    fixed = ["--tensor", "1", "--context", "1", "--chunks", "1", "--schedule", "1f1b", "--microbatch-size", "4"]
    words = ["plan", "profile.json", "--devices", "2", "--batch", "32", "--deterministic-limit", "0", "--json", *fixed]
    assert main([*words, "--time-limit", "300", "-o", "plan.json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert set(answer["searched"]) == SEARCHED
    assert answer["searched"]["incumbents"][-1]["best_step_time_ns"] == answer["best_step_time_ns"]
    assert answer["limited_by"] in set(LimitedBy)
    for alarm in answer["alarms"]:
        assert f"{alarm['kind']}: {alarm['text']}" in err
    text = (tmp_path / "plan.json").read_text()
    assert not [word for word in ("cpu_s", "wall_s", "families_seen", "alarms") if f'"{word}"' in text]


def test_every_word_for_what_ended_a_search_has_one_for_people() -> None:
    assert set(WORDS) == set(LimitedBy)


def test_the_upper_bound_of_memory_of_what_was_evaluated_is_that_of_its_plan() -> None:
    problem = asked(memory_limit_bytes=1 << 24)
    outcome = PortfolioSearch(problem, None).run()
    result = SearchResult("heuristic", 1, None, "")
    for each in outcome.pool.found.values():
        evaluator = outcome.prepared.evaluator(each.candidate.microbatch_size)
        made = make(evaluator, each.candidate, result, "", lowered=False)
        upper = max(made.prediction.peak_memory_upper_bytes)
        assert max(upper_bytes(evaluator, each.candidate, evaluator.shortest(each.candidate))) == upper


def test_the_same_question_gives_the_same_plan_whatever_its_clocks_read() -> None:
    assert plan(asked()) == plan(asked())
