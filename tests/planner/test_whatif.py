"""`penstock whatif`: the plan as it is, priced and simulated on other machines, to the nanosecond."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from costmodel.errors import UsageError
from costmodel.machines.changed_cluster import BANDWIDTH, capped_by_pairs, with_devices, with_link
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.machines.links import LinkClass, Links, SizeRange
from costmodel.machines.typical import typical_cluster
from costmodel.model.profile import Profile, write_profile
from costmodel.model.whole_model import SplitRatios
from costmodel.stages.config import StageConfig
from planner import Problem, make_plan
from planner.commands import main
from planner.plan import Plan, write_plan
from planner.plan.replay import replay
from planner.question.effort import Effort
from planner.question.pins import read_pins
from planner.question.space import Space
from planner.report.whatif.outcome import Consequence
from planner.report.whatif.plan_changes import PlanChanges, changed_cluster, structure_of
from planner.report.whatif.scenarios import scenarios
from planner.report.whatif.settings import Change, change_of, parse_change, parse_sweep
from planner.report.whatif.tornado import inputs
from tests.support.described_models import described
from tests.support.random_profiles import random_profile, u_net
from tests.support.small_plan import PLAN, with_stage

GIB = 2**30
CLUSTER = Cluster(
    (DeviceType("a100", 80 * GIB, catalogue="a100-sxm-80"),),
    (Host("a100", 2, 2),),
    (LinkGroup("nvlink", 2, 240.0, 6_000), LinkGroup("ib", 0, 5.0, 12_000)),
)
LLAMA = described("llama", "a100-sxm-80")
SPLIT = replace(LLAMA, whole=replace(LLAMA.whole, split=(SplitRatios(1.25, 1.125),) * 3))
"""A profile whose split backwards take longer than undivided ones."""


def planned(profile: Profile = LLAMA, cluster: Cluster = CLUSTER, **asked: object) -> Plan:
    schedule, space = str(asked.pop("schedule", "1f1b")), Space(**asked)  # type: ignore[arg-type]
    problem = Problem(profile, cluster, 4, 32, microbatch_size=4, schedule=schedule, space=space,
                      effort=Effort(0.0), target="any")  # fmt: skip
    return make_plan(problem).plan


LINE = planned(stages=4, data=1)
CASES: dict[str, tuple[Plan, Profile]] = {
    "line": (LINE, LLAMA),
    "replicas": (planned(stages=2, data=2), LLAMA),
    "chunks": (planned(stages=2, data=1, tensor=2, chunks=2, schedule="interleaved-1f1b"), LLAMA),
    "zero-3": (planned(stages=2, data=2, zero=3), LLAMA),
    "halves": (planned(SPLIT, stages=4, data=1, schedule="zb-h1"), SPLIT),
}


def step_ns(plan: Plan, profiles: tuple[Profile, ...], *changes: str) -> int:
    return replay(PlanChanges(plan, profiles).under([parse_change(text) for text in changes]).plan).step_time_ns


@pytest.mark.parametrize("with_profile", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_no_change_of_any_input_gives_the_plans_own_step(name: str, with_profile: bool) -> None:
    plan, profile = CASES[name]
    changes = PlanChanges(plan, (profile,) if with_profile else ())
    for key in inputs(changes):
        changed = changes.under([change_of(key, "1x")]).plan
        found = Consequence((), changed, changes.structure(changed))
        assert found.step_time_ns == plan.prediction.step_time_ns, key
        assert found.peak_memory_bytes == plan.prediction.peak_memory_bytes, key


@pytest.mark.parametrize("seed", range(12))
def test_no_change_is_none_on_random_graphs_with_measured_links_and_host_times(seed: int) -> None:
    rng = Random(seed)
    profile = u_net(5, host_ns=70) if seed % 4 == 0 else random_profile(rng, 12, host_ns=rng.choice((0, 70)))
    planner, limit = rng.choice(("ours", "chain")), rng.choice((None, 10**6))
    space = Space(zero=0, data=rng.choice((None, 1)))
    problem = Problem(profile, None, rng.choice((2, 3, 4)), 24, microbatch_size=2, planner=planner,
                      schedule=rng.choice(("auto", "graph-1f1b", "graph-eager-1f1b", "gpipe")),
                      memory_limit_bytes=limit, space=space, effort=Effort(0.0))  # fmt: skip
    plan = make_plan(problem).plan
    for profiles in ((), (profile,)):
        changes = PlanChanges(plan, profiles)
        for key in inputs(changes):
            assert changes.step_ns(changes.under([change_of(key, "1x")]).plan) == plan.prediction.step_time_ns, key
    faster, without = parse_change("link.local.bandwidth=2x"), PlanChanges(plan)
    if not without.under([faster]).left_out:
        assert step_ns(plan, (), str(faster)) == step_ns(plan, (profile,), str(faster))


def test_times_that_differ_by_micro_batch_are_not_known_for_more_of_them() -> None:
    plan = with_stage(PLAN, 0, cost=replace(PLAN.stages[0].cost, forward_ns=(10, 11)))
    with pytest.raises(UsageError, match="give --profile"):
        step_ns(plan, (), "microbatches=4")


def pinned(plan: Plan, profile: Profile, cluster: Cluster, folder: Path, count: int = 8, schedule: str = "") -> int:
    """Plan the same stages with pins on a cluster written by hand; return the step time."""
    pins = "".join(
        f"[[stage]]\noperators = {json.dumps(list(stage.operators))}\nranks = {list(stage.ranks)}\n"
        f"config = {{data = {stage.config.data}, zero = {stage.config.zero}}}\n"
        for stage in plan.stages
    )
    (folder / "pins.toml").write_text(pins)
    problem = Problem(
        profile, cluster, 4, count * 4, microbatch_size=4, schedule=schedule or plan.schedule,
        pins=read_pins(folder / "pins.toml"), effort=Effort(0.0), target="any",
    )  # fmt: skip
    return make_plan(problem).plan.prediction.step_time_ns


def by_hand(ib_gbs: float = 5.0, ib_ns: int = 12_000, memory: int = 80, speeds: tuple[tuple[int, float], ...] = ()):
    devices = (DeviceType("a100", memory * GIB, catalogue="a100-sxm-80"),)
    return Cluster(devices, CLUSTER.hosts, (CLUSTER.groups[0], LinkGroup("ib", 0, ib_gbs, ib_ns)), speeds)


EDITS = [
    (("link.ib.bandwidth=2x",), by_hand(10.0)),
    (("link.ib.bandwidth=1.5GB/s", "link.ib.latency=0.5x"), by_hand(1.5, 6_000)),
    (("link.ib.bandwidth=100Gb/s", "link.ib.latency=20us"), by_hand(12.5, 20_000)),
    (("device.a100.memory=40GiB", "rank.3.speed=0.9"), by_hand(memory=40, speeds=((3, 0.9),))),
    (("device.a100.speed=0.5", "rank.1.speed=2x"), by_hand(speeds=((0, 0.5), (1, 1.0), (2, 0.5), (3, 0.5)))),
]


@pytest.mark.parametrize("name", ["line", "replicas", "zero-3", "halves"])
@pytest.mark.parametrize(("changes", "cluster"), EDITS)
def test_a_change_is_what_planning_the_same_stages_on_a_cluster_edited_by_hand_gives(
    name: str, changes: tuple[str, ...], cluster: Cluster, tmp_path: Path
) -> None:
    plan, profile = CASES[name]
    assert step_ns(plan, (profile,), *changes) == pinned(plan, profile, cluster, tmp_path)


@pytest.mark.parametrize("name", ["line", "replicas", "halves"])
@pytest.mark.parametrize("changes", [changes for changes, _ in EDITS])
def test_without_a_profile_the_file_answers_the_same_for_stages_whose_ranks_divide_nothing(
    name: str, changes: tuple[str, ...]
) -> None:
    plan, profile = CASES[name]
    found = PlanChanges(plan).under([parse_change(text) for text in changes])
    assert found.left_out == ()
    assert replay(found.plan).step_time_ns == step_ns(plan, (profile,), *changes)


def test_what_a_plan_file_cannot_price_is_said() -> None:
    said = {
        name: PlanChanges(CASES[name][0]).under([parse_change("link.nvlink.latency=2x")]).left_out for name in CASES
    }
    assert said["line"] == said["replicas"] == said["halves"] == ()
    assert "send each other within F and B" in said["chunks"][-1]
    assert "send each other within F and B" in said["zero-3"][-1]
    tied = planned(described("gpt2", "a100-sxm-80"), stages=4, data=1)
    assert PlanChanges(tied).under([parse_change("link.ib.bandwidth=2x")]).left_out == (
        "sums of gradients of the stages 0, 3 take as long as before: the file lacks their bytes",
    )
    other = replace(LINE, edges=tuple(replace(edge, p2p_ns=edge.p2p_ns + 1) for edge in LINE.edges))
    assert PlanChanges(other).under([parse_change("link.ib.bandwidth=2x")]).left_out == (
        "messages 0>1, 1>2, 2>3 take as long as before: they were not priced on this cluster",
    )


@pytest.mark.parametrize("profiles", [(), (LLAMA,)])
@pytest.mark.parametrize("name", ["line", "replicas"])
def test_micro_batches_and_schedules_are_what_planning_the_same_stages_gives(
    name: str, profiles: tuple[Profile, ...], tmp_path: Path
) -> None:
    """The micro-batches stay as large, the batch changes."""
    plan = CASES[name][0]
    assert step_ns(plan, profiles, "microbatches=16") == pinned(plan, LLAMA, CLUSTER, tmp_path, 16)
    assert step_ns(plan, profiles, "schedule=gpipe") == pinned(plan, LLAMA, CLUSTER, tmp_path, schedule="gpipe")


def test_a_backward_in_halves_is_made_of_a_whole_one_and_back_only_with_a_profile(tmp_path: Path) -> None:
    whole, halves = planned(SPLIT, stages=4, data=1), CASES["halves"][0]
    split_ns = pinned(whole, SPLIT, CLUSTER, tmp_path, schedule="zb-h1")
    assert step_ns(whole, (), "schedule=zb-h1") == step_ns(whole, (SPLIT,), "schedule=zb-h1") == split_ns
    back_ns = pinned(halves, SPLIT, CLUSTER, tmp_path, schedule="1f1b")
    assert step_ns(halves, (SPLIT,), "schedule=1f1b") == back_ns
    with pytest.raises(UsageError, match="give --profile"):
        step_ns(halves, (), "schedule=1f1b")


def test_orders_that_their_name_does_not_make_have_no_other_number_of_micro_batches() -> None:
    with pytest.raises(UsageError, match="not those that the schedule 'by hand' makes"):
        step_ns(replace(PLAN, schedule="by hand"), (), "microbatches=4")


def test_a_stage_as_slow_again_takes_its_time_again() -> None:
    """The diamond (`small_plan`) with F 20 and B 40 on stage 0: 3F0 32-42, 3B0 to 62, 0B0 84-124, 0B1 to 164."""
    assert step_ns(PLAN, (), "stage.0.time=2x") == 164
    assert step_ns(PLAN, (), "rank.0.speed=0.5") == 164


def test_memory_is_held_against_the_limit_rank_by_rank() -> None:
    peaks = LINE.prediction.peak_memory_bytes
    for size, over in ((max(peaks), 0), (max(peaks) - 5, 5), (min(peaks), max(peaks) - min(peaks))):
        change = parse_change(f"device.a100.memory={size / GIB!r}GiB")
        plan = PlanChanges(LINE).under([change]).plan
        found = Consequence((change,), plan, structure_of(plan)).to_json()
        assert (found["fits"], found["over_memory_bytes"]) == (over == 0, over)


def test_what_was_measured_on_a_link_changes_with_it() -> None:
    ranges = (SizeRange(0, 1_000, 1.0), SizeRange(1_000_000, 2_000, 4.0))
    links = Links("gloo", "cpu", 2, {"p2p": LinkClass(ranges), "p2p_host": LinkClass(ranges)})
    cluster = Cluster((DeviceType("cpu", GIB, "cpu"),), (Host("cpu", 4),), (LinkGroup("local", 0, 9.0, 5),), (), links)
    faster = with_link(cluster, "local", "bandwidth", lambda value: value * 2)
    assert faster.links is not None
    assert [each.bandwidth_gbs for each in faster.links.classes["p2p"].ranges] == [2.0, 8.0]
    assert faster.links.classes["p2p_host"] == links.classes["p2p_host"]
    assert faster.p2p_ns(0, 1, 4_000_000) == 2_000 + 500_000
    given = changed_cluster(
        cluster, [parse_change("link.local.bandwidth=8GB/s"), parse_change("link.local.latency=2x")]
    )
    assert [given.p2p_ns(0, 1, size) for size in (100, 4_000_000)] == [2_050, 4_000 + 500_000]


def test_a_cluster_grows_by_hosts_like_its_last() -> None:
    grown = with_devices(CLUSTER, 7)
    assert (grown.num_devices, grown.hosts[-1].count, with_devices(CLUSTER, 3)) == (8, 4, CLUSTER)
    some = with_devices(replace(CLUSTER.only((2, 3)), speeds=((1, 0.5),)), 4)
    assert (some.num_devices, some.speeds, some.order) == (4, ((3, 0.5),), ())


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("devices=8,16,...,128", ["8", "16", "32", "64", "128"]),
        ("microbatches=4,6,...,10", ["4", "6", "8", "10"]),
        ("link.ib.bandwidth=4x,2x,...,0.5x", ["4x", "2x", "1x", "0.5x"]),
        ("link.ib.latency=1us,5us", ["1us", "5us"]),
        ("schedule=1f1b,gpipe", ["1f1b", "gpipe"]),
    ],
)
def test_a_sweep_goes_on_by_the_same_factor_or_difference(text: str, values: list[str]) -> None:
    assert [change.text for change in parse_sweep(text)] == values


WRONG = [
    ("--set link.ib.bandwidth", 2, "KEY=VALUE is needed"),
    ("--sweep link.eth.bandwidth=1x,2x", 2, "no link 'eth'"),
    ("--set link.eth.bandwidth=2x", 2, "no link 'eth'; it has nvlink, ib"),
    ("--set link.ib.width=2x", 2, "no key is called 'link.ib.width'"),
    ("--set link.ib.bandwidth=0x", 2, "a value above 0"),
    ("--set link.ib.bandwidth=2q", 2, "a factor is needed, as in 2x, or a value (GB/s or"),
    ("--set link.ib.bandwidth=1e999999x", 2, "a factor is needed"),
    ("--set device.h100.memory=2x", 2, "no device 'h100'; it has a100"),
    ("--set rank.4.speed=2x", 2, "ranks are 0 to 3"),
    ("--set rank.1.speed=1e-9", 2, "speeds 1e-06 to 1e+06"),
    ("--set rank.one.speed=2x", 2, "numbered from 0"),
    ("--set stage.4.time=2x", 2, "stages are 0 to 3"),
    ("--set stage.1.time=5us", 2, "a factor is needed, as in 2x"),
    ("--set schedule=best", 2, "no schedule is called so; there are gpipe"),
    ("--set microbatches=0", 2, "a whole number from 1"),
    ("--set link.ib.latency=2x --sweep link.ib.latency=1x,2x", 2, "given twice"),
    ("--set devices=8", 2, "give --sweep devices="),
    ("--sweep devices=2,4", 2, "give --profile"),
    ("--sweep microbatches=4,8,...,15", 2, "name the values"),
    ("--sweep microbatches=4,...,16", 2, "two values before it"),
    ("--sweep microbatches=4,4", 2, "occurs twice"),
    ("--replan --set stage.1.time=2x --profile profile.json", 2, "drop one of the two"),
    ("--jitter 5", 2, "as in 5%"),
    ("--tornado --chart picture.gif", 2, "a chart is written as"),
    ("", 2, "nothing is to change"),
    ("--tornado --profile other.json", 6, "leave --profile out"),
]


@pytest.fixture(scope="module", name="folder")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("whatif")
    write_plan(home / "plan.json", LINE)
    write_profile(home / "profile.json", LLAMA)
    write_profile(home / "other.json", described("gpt2", "a100-sxm-80"))
    return home


@pytest.mark.parametrize(("flags", "code", "said"), WRONG)
def test_what_cannot_be_meant_is_refused_with_the_way_out(
    flags: str, code: int, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["whatif", "plan.json", *flags.split(), "--json"]) == code
    assert said in json.loads(capsys.readouterr().out)["error"]


def answer(folder: Path, flags: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    assert main(["whatif", str(folder / "plan.json"), *flags.split(), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_rows_stand_for_the_plan_as_it_is_and_every_change(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = answer(folder, "--set rank.0.speed=0.5 --sweep link.ib.bandwidth=1x,4x", capsys)
    rows = body["rows"]
    assert [row["change"] for row in rows] == [
        {},
        {"rank.0.speed": "0.5", "link.ib.bandwidth": "1x"},
        {"rank.0.speed": "0.5", "link.ib.bandwidth": "4x"},
    ]
    assert rows[0]["step_time_ns"] == body["step_time_ns"] == LINE.prediction.step_time_ns
    assert rows[1]["step_time_ns"] == step_ns(LINE, (), "rank.0.speed=0.5")
    assert rows[2]["step_time_ns"] == step_ns(LINE, (), "rank.0.speed=0.5", "link.ib.bandwidth=4x")
    assert rows[0]["samples_per_s"] == 32e9 / LINE.prediction.step_time_ns


def test_a_value_of_a_sweep_that_cannot_be_leaves_the_others_their_rows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = answer(folder, "--sweep schedule=gpipe,interleaved-1f1b,dualpipe-v,eager-1f1b", capsys)
    assert [row["change"].get("schedule") for row in body["rows"]] == [None, "gpipe", "interleaved-1f1b", "eager-1f1b"]
    assert [row["change"] for row in body["refused"]] == [{"schedule": "dualpipe-v"}]
    assert "dualpipe-v" in answer(folder, "--sweep schedule=dualpipe-v", capsys, 2)["error"]


def test_a_tornados_bars_are_what_set_says_of_each_the_longest_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = answer(folder, "--tornado --by 20%", capsys)["tornado"]
    bars = body["bars"]
    assert [bar["key"] for bar in sorted(bars, key=lambda bar: -bar["range_ns"])] == [bar["key"] for bar in bars]
    assert {bar["key"] for bar in bars} == set(inputs(PlanChanges(LINE)))
    for bar in bars:
        found = [step_ns(LINE, (), f"{bar['key']}={factor}x") for factor in (0.8, 1.2)]
        assert [bar["smaller_ns"], bar["larger_ns"]] == found


def test_scenarios_are_those_of_their_seed_and_quantiles_rise() -> None:
    first, again, other = (scenarios(LINE, structure_of(LINE), 50, seed, 0.05, 0.03) for seed in (0, 0, 1))
    assert first == again != other
    found = first.to_json()
    marks = [found[f"{name}_ns"] for name in ("p50", "p90", "p99", "largest")]
    assert all(a <= b for a, b in pairwise(marks))  # type: ignore[operator]
    assert found["p90_ns"] == sorted(first.steps_ns)[44]
    assert found["planned_ns"] == LINE.prediction.step_time_ns


def test_a_slow_rank_never_makes_a_step_shorter_and_one_rank_alone_is_slower_by_what_was_drawn() -> None:
    assert min(scenarios(LINE, structure_of(LINE), 50, 0, 0.0, 0.1).steps_ns) >= LINE.prediction.step_time_ns
    single = planned(stages=1, data=1)
    work_ns = single.prediction.step_time_ns
    drawn = 1 + abs(np.random.default_rng(7).standard_normal(3)) * 0.1
    found = scenarios(single, structure_of(single), 3, 7, 0.0, 0.1).steps_ns
    assert found == pytest.approx([work_ns * factor for factor in drawn], abs=40)  # each action is rounded


def test_each_device_count_is_planned_anew_and_device_time_adds_up(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(folder / "free.json", planned(stages=2))
    flags = "--sweep devices=2,4,8 --time-limit 0 --profile profile.json".replace(
        "profile.json", str(folder / "profile.json")
    )
    assert main(["whatif", str(folder / "free.json"), *flags.split(), "--json", "--chart", str(folder / "s.svg")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["devices"] for row in rows] == [2, 4, 8]
    again = make_plan(
        Problem(LLAMA, with_devices(CLUSTER, 8), 8, 32, microbatch_size=4, schedule="1f1b", space=Space(stages=2),
                effort=Effort(0.0), target="any")
    ).plan  # fmt: skip
    assert rows[2]["step_time_ns"] == again.prediction.step_time_ns
    for row in rows:
        whole = row["devices"] * row["step_time_ns"] / 32
        assert sum(row["device_ns_per_sample"].values()) == pytest.approx(whole)
    assert rows[0]["efficiency"] == 1.0
    assert rows[2]["saturates"] in rows[2]["device_ns_per_sample"]


def test_what_plan_would_now_choose_stands_beside_the_plan_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"--set link.ib.bandwidth=0.1x --replan --time-limit 0 --profile {folder / 'profile.json'}"
    rows = answer(folder, flags, capsys)["rows"]
    assert rows[0]["replanned"]["step_time_ns"] == LINE.prediction.step_time_ns
    problem = Problem(LLAMA, by_hand(0.5), 4, 32, microbatch_size=4, schedule="1f1b", space=Space(stages=4, data=1),
                      effort=Effort(0.0), target="any")  # fmt: skip
    assert rows[1]["replanned"]["step_time_ns"] == make_plan(problem).plan.prediction.step_time_ns


def test_the_picture_of_a_change_draws_the_plan_as_it_is_and_under_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(folder, f"--set link.ib.bandwidth=0.1x --chart {folder / 'set.svg'}", capsys)
    assert (folder / "set.svg").stat().st_size


def test_the_picture_of_the_same_questions_has_the_same_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--sweep link.ib.bandwidth=0.5x,2x --tornado --jitter 5% --scenarios 20 --chart"
    pictures = []
    for name in ("a.svg", "b.svg"):
        answer(folder, f"{flags} {folder / name}", capsys)
        pictures.append((folder / name).read_bytes())
    assert pictures[0] == pictures[1]
    assert b"<svg" in pictures[0]


def test_ctrl_c_keeps_the_rows_so_far(folder: Path) -> None:
    """Endless plannings, one a value; the signal comes behind the first row."""
    flags = f"--sweep link.ib.bandwidth=1x,2x,3x --replan --time-limit 600 --profile {folder / 'profile.json'} --json"
    command = [sys.executable, "-m", "planner", "whatif", str(folder / "free.json"), *flags.split()]
    write_plan(folder / "free.json", planned())
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        assert job.stderr.readline().startswith("as it is:")
        job.send_signal(signal.SIGINT)
        out, _ = job.communicate(timeout=300)
    body = json.loads(out)
    assert (job.returncode, body["interrupted"]) == (130, True)
    assert [row["change"] for row in body["rows"]] == [{}]


def test_a_plan_of_ranks_in_lockstep_is_changed_as_one() -> None:
    plan = CASES["chunks"][0]
    assert plan.stages[0].config == StageConfig(tensor=2, sequence=plan.stages[0].config.sequence)
    slow = step_ns(plan, (), "rank.1.speed=0.5")
    assert slow == step_ns(plan, (), "rank.0.speed=0.5") > plan.prediction.step_time_ns
    assert isinstance(parse_change("rank.1.speed=0.5"), Change)


def test_a_faster_link_says_where_pairs_of_devices_stay_as_slow_as_they_are() -> None:
    cluster = typical_cluster("v100-sxm2-16", 4)
    assert capped_by_pairs(cluster, "host") == [
        "two v100-sxm2-16 send each other 20 GB/s at most (catalogue): more bandwidth of link host makes sums of "
        "gradients faster, and no messages between stages"
    ]
    slow = with_link(cluster, "host", BANDWIDTH, lambda _: Fraction(10))
    assert capped_by_pairs(slow, "host") == []
    assert capped_by_pairs(typical_cluster("h100-sxm-80", 4), "host") == []
