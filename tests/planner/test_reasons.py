"""What `penstock explain --profile` says beside a plan: each figure is what the other command gives."""

import json
from dataclasses import replace
from random import Random

import pytest

from costmodel.errors import DoesNotMatch, PenstockError, UsageError
from costmodel.model.profile import write_profile
from planner import Effort, Problem, make_plan, write_plan
from planner.answer.decide import plan
from planner.candidate.evaluate import Evaluator
from planner.commands import main
from planner.graph.atoms import prepare
from planner.plan import Plan
from planner.question.reask import asked_again
from planner.report.why.alternatives import Alternatives
from planner.report.why.replanned import cheap_changes, other_replicas
from tests.properties.one_price import by_pins, made, random_candidate, random_problem, relays
from tests.support.random_profiles import chain
from tests.support.small_plan import PLAN


def pinned_ns(problem: Problem, found: Plan, operators: tuple[str, ...], target: int) -> int:
    """The step with operators in another stage, as a person would edit the pins of a plan."""
    stages = [replace(s, operators=tuple(o for o in s.operators if o not in operators)) for s in found.stages]
    stages[target] = replace(stages[target], operators=(*stages[target].operators, *operators))
    edges = found.edges if relays(problem, found) else ()  # which way tensors go is all that is taken from them
    return by_pins(problem, replace(found, stages=tuple(stages), edges=edges)).prediction.step_time_ns


def random_plan(rng: Random) -> tuple[Problem, Plan]:
    """Random stages on random ranks, alike or not, in any order of schedules."""
    while True:
        problem = random_problem(rng)
        atoms = prepare(problem.profile.graph)
        candidate = random_candidate(rng, problem, atoms)
        try:
            found = made(Evaluator(problem, atoms, candidate.microbatch_size), candidate)
            by_pins(problem, found)
        except PenstockError:
            continue  # a schedule that does not run on such places, or too little memory
        if found.edges:
            return problem, found


@pytest.mark.parametrize("seed", range(12))
def test_a_moved_boundary_costs_what_pinning_the_changed_stages_gives(seed: int):
    problem, found = random_plan(Random(seed))
    near = Alternatives(found, asked_again(found, (problem.profile, *problem.other_profiles)))
    assert near.own.step_time_ns == found.prediction.step_time_ns
    moves = list(near.moves())
    for move in moves:
        if not move.excess_bytes:
            assert pinned_ns(problem, found, move.operators, move.target) == move.step_time_ns
    assert moves or all(len(stage.operators) == 1 for stage in found.stages)


def chain_problem(**options: object) -> Problem:
    given = {"optimizer": "none", "effort": Effort(60.0, 0.0), **options}
    return Problem(chain(6), None, 2, 8, **given)  # type: ignore[arg-type]


def test_another_schedule_takes_what_the_flag_gives_on_the_same_stages():
    problem = chain_problem(microbatch_size=1)
    found = plan(replace(problem, space=replace(problem.space, data=1, stages=2)))
    others = {each.schedule: each.step_time_ns for each in Alternatives(found, problem).schedules()}
    assert found.schedule not in others
    assert len(others) >= 5
    for name, step_ns in others.items():
        assert by_pins(problem, replace(found, schedule=name, schedule_options={})).prediction.step_time_ns == step_ns


def test_the_question_asked_again_has_the_same_answer():
    for options in ({}, {"memory_limit_bytes": 180_000}, {"schedule": "gpipe", "max_stages": 2}, {"target": "any"}):
        problem = chain_problem(**options)
        found = plan(problem)
        again = plan(asked_again(found, [problem.profile]))
        assert replace(again, assumptions=found.assumptions, provenance={}) == replace(found, provenance={})


def test_changes_ask_what_their_flags_ask():
    problem = chain_problem(memory_limit_bytes=2**20)
    found = plan(problem)
    asked = {how: changed for _, how, changed in cheap_changes(found, problem)}
    size = found.batch.microbatch_size * found.stages[0].config.data
    assert set(asked) == {
        f"--memory-limit {1 + 2**-10:.9g}",
        "link local: bandwidth_gbs = 2",
        f"--batch {8 + size}",
        "--devices 3",
    }
    assert asked["--devices 3"].num_devices == 3
    assert asked[f"--batch {8 + size}"].global_batch == 8 + size
    assert asked[f"--memory-limit {1 + 2**-10:.9g}"].memory_limit_bytes == 2**20 + 2**30
    faster = asked["link local: bandwidth_gbs = 2"].machines
    assert faster.p2p_ns(0, 1, 1000) - faster.p2p_ns(0, 1, 1) < problem.machines.p2p_ns(0, 1, 1000)


def test_replicas_that_flags_fix_are_not_asked_for_again():
    problem = chain_problem()
    found = plan(problem)
    assert [how for _, how, _ in other_replicas(found, problem)] == ["--data 2"]
    assert not list(other_replicas(found, replace(problem, space=replace(problem.space, data=2))))


def files(folder, problem: Problem):
    write_profile(folder / "profile.json", problem.profile)
    write_plan(folder / "plan.json", make_plan(problem).plan)
    return [str(folder / "plan.json"), "--profile", str(folder / "profile.json")]


def test_the_command_answers_with_all_of_it(tmp_path, capsys):
    flags = files(tmp_path, chain_problem(space=replace(chain_problem().space, data=1, stages=2, chunks=1)))
    assert main(["explain", *flags, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["priced_again_ns"] == body["step_time_ns"]
    assert all(row["cost_ns"] == row["step_time_ns"] - body["step_time_ns"] for row in body["boundaries"])
    assert len(body["boundaries"]) == 2
    assert body["schedules"]
    gains = [row["gain"] for row in body["cheapest_changes"]]
    assert gains == sorted(gains, reverse=True)
    assert all(gain > 0 for gain in gains)
    assert len(gains) <= 3
    assert {row["how"] for row in body["cheapest_changes"]} <= {row["how"] for row in body["planned_anew"]}
    assert body["binding"]["rank"] in (0, 1)
    assert 0 < body["binding"]["work_share"] <= 1
    assert main(["explain", *flags]) == 0
    assert "why the cuts are where they are" in capsys.readouterr().out


def test_without_a_profile_it_says_what_is_left_out(tmp_path, capsys):
    plan_file = files(tmp_path, chain_problem())[0]
    assert main(["explain", plan_file, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert "moving a boundary" in body["left_out"]
    assert "boundaries" not in body


def test_another_models_profile_is_refused_and_pins_are_asked_for():
    with pytest.raises(DoesNotMatch):
        asked_again(PLAN, [chain(3)])
    problem = chain_problem()
    found = plan(problem)
    pinned = by_pins(problem, found)
    with pytest.raises(UsageError, match="--pin"):
        asked_again(pinned, [problem.profile])


def test_another_profile_of_the_model_is_said(tmp_path, capsys):
    problem = chain_problem()
    flags = files(tmp_path, problem)
    times = tuple(replace(each, forward_ns=tuple(2 * ns for ns in each.forward_ns)) for each in problem.profile.times)
    write_profile(tmp_path / "profile.json", replace(problem.profile, times=times))
    assert main(["explain", *flags]) == 0
    assert "made from another profile" in capsys.readouterr().out


def test_a_full_device_is_named_with_what_one_more_microbatch_takes(tmp_path, capsys):
    problem = chain_problem(memory_limit_bytes=180_000)
    flags = files(tmp_path, problem)
    assert main(["explain", flags[0], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["binding"]
    assert found["limit_bytes"] == 180_000
    assert found["peak_bytes"] <= 180_000
    assert found["next_bytes"] > 0
