"""penstock calibrate: what a run took moves the profile, exactly and no more than the run says."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from costmodel.machines.links import LinkClass, Links, SizeRange
from costmodel.model.origin import Origin
from costmodel.model.profile import Profile, read_profile, write_profile
from planner.candidate.reprice import repriced
from planner.commands import main
from planner.measured.calibration import MovedProfile, Ratio
from planner.plan import Plan, write_plan
from planner.plan.replay import replay
from simulator.actions import RECEIVES, SENDS, Kind
from simulator.timeline import Timeline, write_timeline
from tests.support.described_models import described
from tests.support.jobs import job
from tests.support.measured_by_hand import measured_by_hand

HOST_NS, WAY_NS = 3_000, 50_000
LINKS = Links("gloo", "cpu", 2, {
    "p2p_host": LinkClass((SizeRange(0, HOST_NS, 1e6),)), "p2p": LinkClass((SizeRange(0, WAY_NS, 1e6),)),
})  # fmt: skip
"""Messages of any size take the same."""


@cache
def profile() -> Profile:
    """Of a model that the executor could run, as far as a profile says."""
    return replace(described("llama"), origin=Origin(), links=LINKS)


@cache
def plan(schedule: str = "1f1b") -> Plan:
    return job(profile(), 2, 8, microbatch_size=1, schedule=schedule, optimizer="adam", trainer="executor",
               planner="uniform")  # fmt: skip


def run(of: Plan, slower: Mapping[tuple[int, Kind], float], cold: int = 1, source: Profile | None = None) -> Timeline:
    """A run in which actions take what they were priced with, times a factor; the first of a kind times `cold`, too."""
    bare = repriced(of, source or profile(), host_time=False)
    took = {span.action: span.end_ns - span.start_ns for span in replay(bare).spans}

    def length(action):
        factor = slower.get((action.stage, action.kind), 1.0) * (cold if action.microbatch == 0 else 1)
        return round(took[action] * factor)

    return measured_by_hand(of, length)


def work(of: Profile) -> dict[str, tuple[int, int, int]]:
    """F, I and W of each operator at the run's micro-batch size."""
    rows = zip(of.graph.operators, of.times, strict=True)
    return {o.name: (t.forward_ns[0], t.backward_input_ns[0], t.backward_weight_ns[0]) for o, t in rows}


@pytest.mark.parametrize("cold", [1, 3])
def test_a_stage_that_ran_longer_moves_exactly_its_own_operators_and_the_first_micro_batch_counts_for_nothing(cold):
    slower = {(1, Kind.F): 1.3, (1, Kind.B): 1.5}
    found = MovedProfile(plan(), run(plan(), slower, cold), profile())
    before, after = work(profile()), work(found.moved)
    mine = set(plan().stages[1].operators)
    for name, (forward, inputs, weights) in before.items():
        factors = (1.3, 1.5, 1.5) if name in mine else (1, 1, 1)
        expected = [value * factor for value, factor in zip((forward, inputs, weights), factors, strict=True)]
        assert after[name] == pytest.approx(expected, abs=1), name
    assert [row.moves for row in found.ratios.values()] == pytest.approx([1, 1, 1.3, 1.5], rel=1e-3)


def test_a_run_faster_than_the_trainers_host_was_thought_leaves_work_and_holds_its_own_calls():
    paced = replace(described("llama"), links=LINKS)
    made = job(paced, 2, 8, microbatch_size=1, schedule="1f1b", optimizer="adam", trainer="megatron", planner="uniform")
    took = run(made, {}, source=replace(paced, origin=Origin()))
    assert took.step_time_ns < replay(made).step_time_ns / 4
    found = MovedProfile(made, took, paced)
    assert sum(map(sum, work(found.moved).values())) > 0
    assert replay(found.after).step_time_ns == pytest.approx(took.step_time_ns, rel=0.02)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_the_plan_at_the_new_prices_takes_what_the_run_took(schedule):
    slower = {(stage, kind): 1.2 + stage / 2 for stage in (0, 1) for kind in (Kind.F, Kind.B, Kind.I, Kind.W)}
    made = plan(schedule)
    found = MovedProfile(made, run(made, slower), profile())
    spans = {span.action: span for span in found.bare_after.spans}
    for span in found.bare.spans:
        if span.action.kind in (Kind.F, Kind.B, Kind.I, Kind.W):
            now = spans[span.action]
            factor = slower[span.action.stage, span.action.kind]
            assert now.end_ns - now.start_ns == pytest.approx((span.end_ns - span.start_ns) * factor, rel=1e-3)


@pytest.mark.parametrize(
    ("ratio", "moves"),
    [
        (Ratio(1.3, 7, 0.0), 1.3),  # without scatter all the way
        (Ratio(1.0, 1, 0.5), 1.0),
        (Ratio(1.1, 1, 0.1), 1.1 ** (1 / (1 + 1.2533**2))),  # one action moves it by less than half
        (Ratio(3.0, 1, 0.1), 3.0 ** (1 / (1 + (0.12533 / 1.0986) ** 2))),  # what is far off is no chance
    ],
)
def test_a_ratio_moves_as_far_as_it_can_be_trusted(ratio, moves):
    assert ratio.moves == pytest.approx(moves, rel=1e-4)


def test_messages_move_the_links_that_priced_them():
    found = MovedProfile(plan(), run(plan(), {}), profile()).links
    # the calls take 2 (send), 1 and 1 (posting and taking a message that is there) of HOST_NS
    assert found["p2p_host"].measured <= 2 / HOST_NS
    assert "p2p" in found
    moved = MovedProfile(plan(), run(plan(), {}), profile()).moved.links
    assert moved.classes["p2p"].ranges[0].latency_ns < WAY_NS / 100
    assert set(moved.classes) == set(LINKS.classes)


def test_links_that_were_given_stay_as_they_are():
    given = replace(plan(), assumptions=replace(plan().assumptions, links="given"))
    other = replace(given, cluster=replace(given.cluster, links=None))
    found = MovedProfile(other, run(other, {}), profile())
    assert found.moved.links == LINKS
    assert any("not the profile's" in text for text in found.stays())


def test_a_run_of_the_new_profile_is_calibrated_further():
    first = MovedProfile(plan(), run(plan(), {(0, Kind.F): 2.0}), profile()).moved
    second = MovedProfile(plan(), run(plan(), {(0, Kind.F): 2.0}), first)
    assert second.ratios[0, "forward"].measured == pytest.approx(1, rel=1e-3)
    assert len(second.moved.provenance["calibrated"]) == 2
    assert len({profile().origin.calibration, first.origin.calibration, second.moved.origin.calibration}) == 3


@pytest.mark.parametrize(
    "choices",
    [
        {"stages": 2},
        {"stages": 2, "schedule": "zb-h1"},
        {"data": 2, "zero": 1},
        {"tensor": 2, "trainer": "megatron"},
        {"stages": 2, "data": 2, "num": 4},
        {"stages": 2, "chunks": 2, "schedule": "interleaved-1f1b", "trainer": "megatron"},
        {"stages": 2, "recompute": "full", "trainer": "executor"},
    ],
    ids=str,
)
def test_a_plan_priced_anew_with_its_own_profile_costs_what_it_did(choices):
    number = choices.pop("num", 2) if "num" in choices else 2
    made = job(profile(), number, 8, microbatch_size=1, planner="uniform", **choices)
    assert repriced(made, profile()).costs() == made.costs()


@pytest.fixture(name="files")
def plan_run_and_profile(tmp_path):
    paths = [str(tmp_path / name) for name in ("plan.json", "run.json", "profile.json", "new.json")]
    write_plan(paths[0], plan())
    write_timeline(paths[1], run(plan(), {(1, Kind.B): 1.4}))
    write_profile(paths[2], profile())
    return paths


def answered(capsys, *words):
    code = main(["calibrate", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_command_tells_errors_before_and_after_and_writes_a_profile_that_plans_name(files, capsys):
    made, timeline, old, new = files
    code, answer = answered(capsys, made, "--measured", timeline, "--profile", old, "-o", new)
    rows = {(row["stage"], row["kind"]): row for row in answer["before"]["stages"]}
    assert code == 0
    assert rows[1, "B"]["error_percent"] == pytest.approx(100 / 1.4 - 100, abs=0.01)
    assert {(row["stage"], row["kind"]): row for row in answer["after"]["stages"]}[1, "B"][
        "error_percent"
    ] == pytest.approx(0, abs=0.01)
    assert abs(answer["after"]["error_percent"]) < abs(answer["before"]["error_percent"])
    moved = read_profile(new)
    assert moved.origin.calibration == answer["calibration"]
    again = job(moved, 2, 8, microbatch_size=1, schedule="1f1b", planner="uniform")
    assert again.assumptions.calibration == answer["calibration"]
    assert main(["calibrate", made, "--measured", timeline, "--profile", old, "-o", new]) == 0
    assert "stays: operators within a stage" in capsys.readouterr().out


def test_without_a_profile_errors_alone_are_told_and_nothing_is_written(files, capsys, tmp_path):
    code, answer = answered(capsys, files[0], "--measured", files[1])
    rows = {(row["stage"], row["kind"]): row["error_percent"] for row in answer["before"]["stages"]}
    assert code == 0
    assert rows[1, "B"] == pytest.approx(100 / 1.4 - 100, abs=0.01)
    assert rows[0, "F"] == pytest.approx(0, abs=0.01)
    assert answer["after"] is None
    assert "--profile" in answer["left_out"][0]
    assert len(list(tmp_path.iterdir())) == 3


def test_what_does_not_belong_together_is_refused_and_nothing_is_written(files, capsys):
    made, timeline, old, new = files
    other = files[2].replace("profile", "other")
    write_profile(other, described("gpt2"))
    assert answered(capsys, made, "--measured", timeline, "--profile", other, "-o", new)[0] == 6
    assert answered(capsys, made, "--measured", timeline, "-o", new)[0] == 2
    assert answered(capsys, made, "--measured", timeline, "--profile", old)[0] == 2
    short = [span for span in run(plan(), {}).spans if span.action.kind not in SENDS | RECEIVES]
    write_timeline(timeline, Timeline(2, tuple(short)))
    code, answer = answered(capsys, made, "--measured", timeline, "--profile", old, "-o", new)
    assert code == 6
    assert "--timeline F wrote for this very plan" in answer["error"]
    assert not Path(new).exists()
