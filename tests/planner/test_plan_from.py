"""`plan --from`: an old plan is the start, nothing slower comes out, and the answer says what moved."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from costmodel.errors import DoesNotMatch, InvalidInput, NoPlanFits, PenstockError, UsageError
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Device, Profile, write_profile
from planner import Effort, PlanAnswer, Problem, Space, make_plan, read_plan, write_plan
from planner.answer.decide import plan
from planner.candidate.evaluate import Evaluator
from planner.commands import main
from planner.graph.atoms import prepare
from planner.plan import Plan, orders
from planner.plan.limited_by import LimitedBy
from planner.question.pins import Group, Pins, StagePin
from planner.report.summary.text import duration
from tests.properties.one_price import by_pins, hosts, made, random_candidate, random_problem
from tests.support.pipelines import pipelines
from tests.support.random_profiles import branches, chain, profile_of, random_profile

TIMES = ("forward_ns", "backward_input_ns", "backward_weight_ns")


def problem_of(profile: Profile, num_devices: int = 3, batch: int = 8, **options: object) -> Problem:
    """A problem of pipelines alone, unless a space is given."""
    given: dict[str, object] = {"deterministic_limit": 0.0, "time_limit_s": 600.0, **options}
    return pipelines(profile, num_devices, batch, given.pop("microbatch_size", 1), **given)  # type: ignore[arg-type]


def slower(profile: Profile, *times: float) -> Profile:
    """The same model, whose i-th operator takes `times[i]` times as long."""
    changed = [
        replace(row, **{part: tuple(round(ns * factor) for ns in getattr(row, part)) for part in TIMES})
        for row, factor in zip(profile.times, times, strict=True)
    ]
    return replace(profile, times=tuple(changed))


def again(problem: Problem, old: Plan, **changes: object) -> PlanAnswer:
    return make_plan(replace(problem, old_plan=old, **changes))  # type: ignore[arg-type]


def start(answer: PlanAnswer) -> dict[str, object]:
    found = answer.to_json()["from"]
    assert isinstance(found, dict)
    return found


def said(answer: PlanAnswer) -> str:
    return "\n".join(line for line in map(str, answer.text()) if line.startswith(("from ", "moved ")))


def changed(rng: Random, problem: Problem) -> Problem:
    """The problem with other times, and maybe another batch, more or fewer devices, or other machines."""
    profile = slower(problem.profile, *(rng.choice((0.5, 1, 1, 2)) for _ in problem.profile.times))
    others = tuple(slower(each, *(1 for _ in each.times)) for each in problem.other_profiles)
    problem = replace(problem, profile=profile, other_profiles=others)
    if rng.random() < 0.2:
        return replace(problem, global_batch=problem.global_batch * 2)
    if rng.random() < 0.3 and not problem.cluster:
        return replace(problem, num_devices=rng.choice((2, 4, 6)))
    return replace(problem, cluster=hosts(profile)) if rng.random() < 0.3 and not others else problem


def random_plan(rng: Random, problem: Problem) -> Plan | None:
    """Random stages on random ranks, if they can be run."""
    atoms = prepare(problem.profile.graph)
    candidate = random_candidate(rng, problem, atoms)
    try:
        return made(Evaluator(problem, atoms, candidate.microbatch_size), candidate)
    except PenstockError:
        return None


def old_plan_failures(seed: int, effort: Effort) -> list[str]:
    """What is slower than a random old plan, or priced unlike pins price it; ``stands`` where nothing is."""
    rng = Random(seed)
    problem = replace(random_problem(rng), effort=effort)
    old, now = random_plan(rng, problem), changed(rng, problem)
    if old is None:
        return []
    try:
        answer = again(now, old)
    except NoPlanFits:
        return []
    found = start(answer)
    if found["used"] != "plan":
        return [] if found["why_not"] else [f"{seed}: no reason"]
    new_ns, pinned_ns = answer.plan.prediction.step_time_ns, by_pins(now, old).prediction.step_time_ns
    wrong = [f"{seed}: {new_ns} ns, the old plan {found['step_time_ns']}"] if new_ns > found["step_time_ns"] else []
    if found["step_time_ns"] != pinned_ns:
        wrong.append(f"{seed}: priced {found['step_time_ns']} ns, by pins {pinned_ns}")
    if answer.plan.search.limited_by == LimitedBy.BROKEN_BOUND:
        wrong.append(f"{seed}: the old plan is none that the bound ranges over")
    return wrong or ["stands"]


def test_without_any_time_nothing_slower_than_an_old_plan_comes_out_where_that_stands() -> None:
    found = [line for seed in range(24) for line in old_plan_failures(seed, Effort(0.0))]
    assert set(found) == {"stands"}
    assert len(found) >= 10


def test_with_time_for_a_search_neither() -> None:
    found = [line for seed in range(50, 52) for line in old_plan_failures(seed, Effort(60.0, 0.01))]
    assert set(found) == {"stands"}


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_whose_times_alone_changed_stands(seed: int) -> None:
    rng = Random(seed)
    profile = random_profile(rng, 7)
    problem = problem_of(profile)
    now = replace(problem, profile=slower(profile, *(rng.choice((0.5, 1, 3)) for _ in profile.times)))
    found = start(again(now, plan(problem)))
    assert (found["used"], found["why_not"]) == ("plan", "")


@pytest.mark.parametrize("profile", [chain(8), branches(2, 3), random_profile(Random(2), 8)])
def test_the_same_plan_comes_back_when_nothing_changed(profile: Profile) -> None:
    problem = problem_of(profile)
    old = plan(problem)
    answer = again(problem, old)
    assert (answer.plan.stages, answer.plan.orders, answer.plan.schedule) == (old.stages, old.orders, old.schedule)
    assert answer.plan.prediction == old.prediction
    found = start(answer)
    assert {key: found[key] for key in ("used", "why_not", "step_time_ns", "moved")} == {
        "used": "plan",
        "why_not": "",
        "step_time_ns": old.prediction.step_time_ns,
        "moved": {"operators": 0, "between_stages": [], "changed": {}},
    }
    assert said(answer).endswith("(as long)\nmoved        nothing")


def test_operators_that_change_stage_are_counted_and_named() -> None:
    """The last operator takes four times as long now, so that it shares its stage with fewer."""
    profile, space = chain(8), Space(stages=2, data=1, chunks=1)
    problem = problem_of(profile, 2, space=space, schedule="1f1b")
    old = plan(problem)
    assert [len(stage.operators) for stage in old.stages] == [4, 4]
    answer = again(replace(problem, profile=slower(profile, *[1] * 7, 4)), old)
    assert [len(stage.operators) for stage in answer.plan.stages] == [6, 2]
    moved = {"operators": 2, "between_stages": [{"from": 1, "to": 0, "operators": ["op4", "op5"]}], "changed": {}}
    assert start(answer)["moved"] == moved
    assert "2 of 8 operators changed stage (2 in op4 .. op5 from stage 1 to 0)" in said(answer)
    old_ns, new_ns = start(answer)["step_time_ns"], answer.plan.prediction.step_time_ns
    assert isinstance(old_ns, int)
    assert f"would take {duration(old_ns)} here, this one {duration(new_ns)}" in said(answer)
    assert f"({100 * (1 - new_ns / old_ns):.2f} % less)" in said(answer)


def test_on_other_links_the_old_plan_is_priced_anew() -> None:
    """Messages of a millisecond make one device quicker than a pipeline."""
    profile = chain(8)
    problem = problem_of(profile, 2, space=Space(data=1))
    old = plan(problem)
    slow = Cluster((DeviceType("tester", 2**40),), (Host("tester", 2),), (LinkGroup("slow", 0, 1.0, 1_000_000),))
    answer = again(replace(problem, cluster=slow), old)
    assert len(old.stages) > 1 == len(answer.plan.stages)
    found = start(answer)
    assert found["used"] == "plan"
    assert found["step_time_ns"] == by_pins(replace(problem, cluster=slow), old).prediction.step_time_ns
    assert found["moved"]["changed"]["stages"] == [len(old.stages), 1]  # type: ignore[index]


def test_a_plan_that_leaves_out_the_first_devices_is_placed_on_those_of_its_kind_again() -> None:
    """A plan numbers the devices that it uses: its ranks 0 and 1 are the devices 2 and 3, the first two being slow."""
    profile = chain(8)
    slow = replace(slower(profile, *[20] * 8), device=Device("cpu", "slow", 2**40))
    types = (DeviceType("slow", 2**40, "cpu"), DeviceType("tester", 2**40, "cpu"))
    cluster = Cluster(types, (Host("slow", 2), Host("tester", 2)), (LinkGroup("local", 0, 10.0, 50),))
    problem = problem_of(profile, 4, cluster=cluster, other_profiles=(slow,))
    old = plan(problem)
    assert [old.cluster.device_of(rank).name for rank in range(len(old.orders))] == ["tester", "tester"]
    found = start(again(problem, old))
    assert (found["used"], found["step_time_ns"]) == ("plan", old.prediction.step_time_ns)


def test_a_plan_for_more_devices_than_there_are_gives_its_cut() -> None:
    problem = problem_of(chain(8), 4, space=Space(stages=2, data=2, chunks=1))
    answer = again(replace(problem, num_devices=2, space=Space(stages=2)), plan(problem))
    assert (start(answer)["used"], start(answer)["step_time_ns"]) == ("cut", None)
    assert "cannot be used as it stands: it needs 4 devices, there are 2; its cut was a start" in said(answer)
    assert "devices 4 to 2" in said(answer)


def test_a_plan_for_fewer_devices_stands_and_gives_its_cut_to_more_replicas() -> None:
    """Before anything is searched its cut has twice the replicas, on all devices."""
    problem = problem_of(chain(8, parameter_bytes=100), 2, space=Space(stages=2, chunks=1))
    old, lines = plan(problem), list[str]()
    answer = make_plan(replace(problem, num_devices=4, old_plan=old), progress=lines.append)
    assert start(answer)["used"] == "plan"
    assert lines[0].startswith("old plan: data-parallel+pipeline ")
    assert answer.plan.prediction.step_time_ns < start(answer)["step_time_ns"]  # type: ignore[operator]


FLAGS = {
    "--zero 1 is fixed, and it has 0": {"space": Space(zero=1, data=2)},
    "--microbatch-size 2 is fixed, and it has 1": {"microbatch_size": 2},
    "--schedule gpipe is fixed, and it has": {"schedule": "gpipe"},
    "--max-stages 1 is fixed, and it has 2": {"max_stages": 1},
    "its micro-batches of 1 on 2 replicas do not divide the batch of 7": {"global_batch": 7},
    "it puts 'op0' and 'op4' into two stages": {"pins": Pins(together=(Group(("op0", "op5"), "pins"),))},
    "--pin gives stages of its own": {"pins": Pins(stages=(StagePin(Group(("op0",), "pins")),))},
    "its stages form no line": {"planner": "chain"},
    "--target megatron does not take this plan": {"target": "megatron", "effort": Effort(600.0, 0.0)},
}


@pytest.mark.parametrize("reason", FLAGS)
def test_flags_win_and_the_answer_says_which(reason: str) -> None:
    profile = branches(3, 2) if "line" in reason else chain(8)
    space = Space(data=1, stages=4) if "line" in reason else Space(data=2, stages=2, chunks=1, zero=0, recompute="none")
    problem = problem_of(profile, 4, space=space, schedule="graph-1f1b")
    free = replace(problem, space=Space(chunks=1), microbatch_size=None, schedule="auto", effort=Effort(0.0))
    answer = again(free, plan(problem), **FLAGS[reason])
    assert start(answer)["used"] != "plan"
    assert reason in str(start(answer)["why_not"])
    assert reason in said(answer)


def test_a_plan_over_the_memory_is_told_by_how_much() -> None:
    problem = problem_of(chain(8), 2, schedule="graph-eager-1f1b", space=Space(data=1, stages=2))
    old = plan(problem)
    least = max(old.prediction.peak_memory_bytes) - 2**10
    answer = again(replace(problem, schedule="auto", space=Space()), old, memory_limit_bytes=least)
    assert start(answer)["why_not"] == "it is over the memory of a device by 0.001 MiB"
    assert start(answer)["step_time_ns"] == old.prediction.step_time_ns


def test_a_plan_of_another_model_is_refused_and_what_differs_is_named() -> None:
    problem = problem_of(chain(4))
    old = plan(problem_of(chain(6)))
    with pytest.raises(DoesNotMatch, match=r"only the plan has 2 operators \('op4', 'op5'\); give a plan of this"):
        again(problem, old)
    other = plan(problem_of(profile_of([1000] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)])))
    with pytest.raises(DoesNotMatch, match="operators of the same names, whose kinds, parameters, shapes or edges"):
        again(problem, other)


def test_a_plan_changed_by_hand_is_refused() -> None:
    problem = problem_of(chain(4))
    old = plan(problem)
    stages = (replace(old.stages[0], operators=("op0", "op0", "opx")), *old.stages[1:])
    with pytest.raises(InvalidInput, match=r"has in no stage 'op1'.*; it has twice 'op0'; it has, and .* 'opx'"):
        again(problem, replace(old, stages=stages))


@pytest.mark.parametrize("planner", ["uniform", "single", "piper"])
def test_planners_without_a_search_of_their_own_refuse_it(planner: str) -> None:
    problem = problem_of(chain(4))
    with pytest.raises(UsageError, match=f"--from starts a search of --planner ours or chain, and {planner} has none"):
        again(problem, plan(problem), planner=planner)


def test_the_chain_starts_from_a_plan_too() -> None:
    problem = problem_of(branches(2, 3), planner="chain")
    old = plan(problem)
    answer = again(problem, old)
    assert start(answer)["used"] == "plan"
    assert answer.plan.stages == old.stages


def test_a_cut_of_a_large_graph_is_one_that_the_search_knows() -> None:
    """Of 400 operators not every position is a cut; those of the old plan are, whatever the times are now."""
    rng = Random(3)
    profile = random_profile(rng, 400)
    problem = replace(problem_of(profile), effort=Effort(0.0))
    now = replace(problem, profile=slower(profile, *(rng.choice((0.3, 1, 3)) for _ in profile.times)))
    answer = again(now, plan(problem))
    assert start(answer)["used"] == "plan"
    assert answer.plan.prediction.step_time_ns <= start(answer)["step_time_ns"]  # type: ignore[operator]


@pytest.fixture(name="files")
def written(tmp_path: Path) -> Path:
    """A folder with a profile and a plan of it."""
    profile = random_profile(Random(4), 7)
    write_profile(tmp_path / "p.json", profile)
    write_plan(tmp_path / "old.json", plan(problem_of(profile, 2, schedule="graph-1f1b")))
    return tmp_path


def run(files: Path, *words: str, old: str = "old.json") -> int:
    numbers = {"devices": 2, "batch": 8, "microbatch-size": 1, "data": 1, "chunks": 1, "deterministic-limit": 0.01}
    named = {**numbers, "recompute": "none", "optimizer": "none", "from": files / old, "output": files / "n.json"}
    return main(["plan", str(files / "p.json"), *(f"--{name}={value}" for name, value in named.items()), *words])


def test_the_same_question_gives_the_same_bytes_and_no_path(files: Path) -> None:
    assert run(files) == 0
    first = (files / "n.json").read_bytes()
    (files / "elsewhere.json").write_bytes((files / "old.json").read_bytes())
    assert run(files, old="elsewhere.json") == 0
    assert (files / "n.json").read_bytes() == first
    assert b"old.json" not in first


def test_the_command_answers_what_the_library_does(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, "--json") == 0
    found = json.loads(capsys.readouterr().out)["from"]
    assert found["used"] == "plan"
    assert found["step_time_ns"] == read_plan(files / "old.json").prediction.step_time_ns
    gained = {"best_step_time_ns", "gain", "gain_interval"}
    assert found.keys() == {"used", "why_not", "step_time_ns", "moved"} | gained


def test_a_plan_of_version_two_is_taken(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = json.loads((files / "old.json").read_text())
    old.pop("rank_order", None)
    for stage in old["stages"]:
        stage["config"] = {
            key: value for key, value in stage["config"].items() if key not in ("shard_group", "expert_tensor")
        }
    old["version"] = 2
    (files / "second.json").write_text(json.dumps(old))
    assert run(files, "--json", old="second.json") == 0
    assert json.loads(capsys.readouterr().out)["from"]["used"] == "plan"


def test_a_plan_in_short_is_taken(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(orders, "LONG", 1)
        write_plan(files / "short.json", read_plan(files / "old.json"))
    assert "repeat" in (files / "short.json").read_text()
    assert run(files, "--json", old="short.json") == 0
    assert json.loads(capsys.readouterr().out)["from"]["used"] == "plan"


def test_a_damaged_file_is_refused_with_its_name(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (files / "old.json").read_text()
    (files / "torn.json").write_text(text[: len(text) // 2])
    assert run(files, old="torn.json") == 3
    assert "torn.json" in capsys.readouterr().err


def test_another_model_ends_with_exit_six(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(files / "other.json", plan(problem_of(chain(3), 2)))
    assert run(files, old="other.json") == 6
    assert "only the profile has 4 operators ('op3', 'op4', 'op5' and 1 more)" in capsys.readouterr().err
