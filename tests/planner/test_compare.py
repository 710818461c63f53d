"""penstock compare: rows, measured timelines beside predicted ones, the page and the trace."""

import json
from dataclasses import replace

import pytest

from costmodel.errors import DoesNotMatch
from costmodel.machines.links import LinkClass, Links, SizeRange
from costmodel.model.origin import ROOFLINE
from costmodel.stages.config import StageConfig
from planner.commands import main
from planner.plan import Batch, write_plan
from planner.report.comparison.compared import ComparedPlan
from planner.report.comparison.comparison import Comparison
from planner.report.comparison.measured import host_calls, read_measured
from planner.report.html.page import write_page
from planner.report.summary.standing import standings
from simulator.actions import RECEIVES, SENDS
from simulator.timeline import Timeline, write_timeline
from tests.support.measured_by_hand import measured_by_hand
from tests.support.small_plan import PLAN

MEASURED = measured_by_hand(PLAN)


@pytest.fixture(name="files")
def plan_and_timeline(tmp_path):
    plan, timeline = tmp_path / "plan.json", tmp_path / "measured.json"
    write_plan(plan, PLAN)
    write_timeline(timeline, MEASURED)
    return plan, timeline


def compared(capsys, *words):
    code = main(["compare", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_four_parts_add_up_to_the_difference_between_measured_and_predicted(files, capsys):
    plan, timeline = files
    code, answer = compared(capsys, plan, "--measured", timeline)
    (row,) = answer["rows"]
    measured = row["measured"]
    assert code == 0
    assert row["step_time_ns"] == measured["predicted_step_time_ns"] == 124
    assert measured["step_time_ns"] == MEASURED.step_time_ns
    assert measured["error_percent"] == pytest.approx(100 * (124 - MEASURED.step_time_ns) / MEASURED.step_time_ns)
    assert set(measured["difference_ns"]) == {"compute", "communication", "waiting", "python"}
    assert sum(measured["difference_ns"].values()) == MEASURED.step_time_ns - 124
    assert measured["ranks"][measured["rank"]] == measured["difference_ns"]
    assert len(measured["ranks"]) == 4
    # F takes 15 instead of 10 and B 25 instead of 20, twice each; the lowest stage comes first.
    assert measured["drifts"][0] == {
        "stage": 0, "kind": "B", "actions": 2, "predicted_ns": 40, "measured_ns": 50, "difference_ns": 10,
    }  # fmt: skip


def test_a_message_between_ranks_has_the_host_time_that_the_links_measured():
    links = Links("gloo", "cpu", 2, {"p2p_host": LinkClass((SizeRange(0, 3, 1.0),))})
    plan = replace(PLAN, cluster=replace(PLAN.cluster, links=links))
    calls = host_calls(plan)
    assert len(calls) == 32  # 16 messages, each with two ends
    assert set(calls.values()) == {3 + 2}  # 2 bytes
    assert set(host_calls(PLAN).values()) == {0}


def test_a_plan_that_was_not_run_has_nothing_measured(files, capsys):
    plan, timeline = files
    other = plan.with_name("other.json")
    write_plan(other, PLAN)
    _, answer = compared(capsys, plan, other, "--measured", timeline)
    assert [row["measured"] is None for row in answer["rows"]] == [False, True]


def test_people_read_the_difference_and_the_actions_furthest_from_the_plan(files, capsys):
    plan, timeline = files
    assert main(["compare", str(plan), "--measured", str(timeline)]) == 0
    shown = capsys.readouterr().out
    assert "measured minus predicted" in shown
    assert "B of stage 0" in shown


def without(timeline, kinds):
    return Timeline(timeline.num_ranks, tuple(s for s in timeline.spans if s.action.kind not in kinds))


def swapped(timeline):
    """The first two actions of rank 0 the other way round."""
    first, second = timeline.spans[:2]
    spans = (replace(first, action=second.action), replace(second, action=first.action), *timeline.spans[2:])
    return Timeline(timeline.num_ranks, spans)


OTHERS = {
    "ranks": (Timeline(5, MEASURED.spans), "measured on 5 ranks, and the plan has 4"),
    "order": (swapped(MEASURED), "rank 0 did 0F1 where the plan has 0F0"),
    "no sends": (without(MEASURED, SENDS), r"rank 0 did 0F1 where the plan has 0SEND_F0>1"),
    "no receives": (without(MEASURED, RECEIVES), r"0RECV_B0<1 of rank 0 is only in"),
    "shorter": (Timeline(4, ()), "rank 0 did nothing more where the plan has 0F0"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_timeline_of_another_plan_is_refused(name, tmp_path):
    timeline, message = OTHERS[name]
    write_timeline(tmp_path / "other.json", timeline)
    with pytest.raises(DoesNotMatch, match=message):
        read_measured(tmp_path / "other.json", PLAN)


def test_a_timeline_that_does_not_match_exits_6_with_one_line(files, capsys):
    plan, timeline = files
    write_timeline(timeline, swapped(MEASURED))
    assert main(["compare", str(plan), "--measured", str(timeline)]) == 6
    (line,) = capsys.readouterr().err.splitlines()
    assert "give the timeline that torchrun -m executor PLAN --timeline F wrote for this very plan" in line


def test_more_timelines_than_plans_are_refused(files, capsys):
    plan, timeline = files
    code, answer = compared(capsys, plan, "--measured", timeline, "--measured", timeline)
    assert (code, answer["exit"]) == (2, 2)


def test_a_row_says_what_a_step_sends_where_ranks_idle_and_what_they_hold(files, capsys):
    _, answer = compared(capsys, files[0])
    (row,) = answer["rows"]
    assert sum(row["bubble_causes"].values()) == 4 * 124 - 240
    assert main(["simulate", str(files[0]), "--json"]) == 0
    assert row["bubble_causes"] == json.loads(capsys.readouterr().out)["bubble_causes"]
    # Four edges by two micro-batches, forward and backward, 2 bytes and 1 ns each.
    sent = {"messages": 16, "message_bytes": 32, "message_ns": 16, "reduction_ns": 0}
    assert row["communication"] == sent
    assert (row["peak_memory_bytes"], row["peak_memory_bytes_per_rank"]) == (25, [25, 25, 25, 21])
    assert row["memory_limit_bytes"] == 1000
    assert (row["gap"], row["scope"]) == (pytest.approx(0.24), "by hand")
    assert (row["tokens_per_s"], row["mfu"]) == (None, None)  # a plan made by hand does not say what a sample is


def in_pairs(plan):
    """The plan with every rank of it two ranks that divide tensors."""
    stages = [
        replace(stage, ranks=(2 * stage.ranks[0], 2 * stage.ranks[0] + 1), config=StageConfig(tensor=2))
        for stage in plan.stages
    ]
    cluster = replace(plan.cluster, hosts=(replace(plan.cluster.hosts[0], devices=8),))
    twice = {
        name: tuple(size for size in getattr(plan.prediction, name) for _ in range(2))
        for name in ("peak_memory_bytes", "peak_memory_upper_bytes")
    }
    orders = tuple(order for order in plan.orders for _ in range(2))
    prediction = replace(plan.prediction, **twice)
    return replace(plan, stages=tuple(stages), cluster=cluster, orders=orders, prediction=prediction)


def test_every_rank_of_a_block_counts(files, capsys):
    write_plan(files[0], in_pairs(PLAN))
    one, two = (Comparison((ComparedPlan("plan", plan),)).rows()[0] for plan in (PLAN, in_pairs(PLAN)))
    assert two["bubble_causes"] == {cause: 2 * time_ns for cause, time_ns in one["bubble_causes"].items()}
    assert two["communication"] == {name: 2 * value for name, value in one["communication"].items()}
    assert two["bubble_ratio"] == one["bubble_ratio"]


def test_the_run_of_ranks_in_lockstep_is_held_against_their_leads(files, capsys):
    plan = in_pairs(PLAN)
    spans = tuple(replace(span, rank=2 * span.rank + member) for span in MEASURED.spans for member in range(2))
    write_plan(files[0], plan)
    write_timeline(files[1], Timeline(8, tuple(sorted(spans, key=lambda s: (s.rank, s.stream, s.start_ns)))))
    code, answer = compared(capsys, *files[:1], "--measured", files[1])
    measured = answer["rows"][0]["measured"]
    assert (code, measured["step_time_ns"], len(measured["ranks"])) == (0, MEASURED.step_time_ns, 4)


def test_the_lower_of_the_limit_asked_for_and_the_devices_memory_is_the_limit():
    def limit(asked):
        plan = replace(PLAN, provenance={**PLAN.provenance, "options": {"memory_limit_bytes": asked}})
        return ComparedPlan("plan", plan).limit_bytes

    assert (limit(30), limit(2000), limit(None), limit("30")) == (30, 1000, 1000, 1000)


def test_plans_of_other_models_and_batches_are_compared_and_marked(files, capsys):
    plan, _ = files
    other = plan.with_name("other.json")
    write_plan(
        other,
        replace(
            PLAN, model_name="square", fingerprint="f" * 64, batch=replace(PLAN.batch, global_size=8, microbatch_size=4)
        ),
    )
    code, answer = compared(capsys, plan, other)
    assert (code, [row["differs_in"] for row in answer["rows"]]) == (0, [[], ["model", "batch"]])
    assert main(["compare", str(plan), str(other)]) == 0
    assert "plans of 2 different models (diamond, square): their times do not compare" in capsys.readouterr().out


def test_the_page_shows_what_was_measured(files, capsys):
    plan, timeline = files
    path = plan.with_name("page.html")
    code, answer = compared(capsys, plan, "--measured", timeline, "--html", path)
    assert (code, answer["html"]) == (0, str(path))
    text = path.read_text()
    for cell in ("communication", "B of stage 0", "graph-1f1b"):
        assert f">{cell}</" in text
    assert 'aria-label="measured timeline of plan"' in text


def test_page_chart_and_trace_are_the_same_bytes_on_repeat(files, capsys):
    plan, timeline = files
    for name in "ab":
        flags = [("--html", "html"), ("--chart", "svg"), ("--trace", "json")]
        paths = [word for flag, suffix in flags for word in (flag, plan.with_name(f"{name}.{suffix}"))]
        assert compared(capsys, plan, "--measured", timeline, *paths)[0] == 0
    for suffix in ("html", "svg", "json"):
        assert plan.with_name(f"a.{suffix}").read_bytes() == plan.with_name(f"b.{suffix}").read_bytes()


def test_the_trace_holds_every_timeline_under_its_own_name(files, capsys):
    plan, timeline = files
    other, path = plan.with_name("chain.json"), plan.with_name("trace.json.out.json")
    write_plan(other, PLAN)
    compared(capsys, plan, other, "--measured", timeline, "--trace", path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    of = ("plan predicted", "plan measured", "chain")
    assert names == {4 * i + rank: f"{name}: rank {rank}" for i, name in enumerate(of) for rank in range(4)}
    # Arrows stay within a timeline, each from one send to one receive; a measured receive is two slices, one arrow.
    ends = {}
    for event in events:
        if event["ph"] in "sf":
            ends.setdefault(event["id"], []).append((event["ph"], event["pid"] // 4))
    assert len(ends) == 3 * 16
    assert all(sorted(pair) == [("f", pair[0][1]), ("s", pair[0][1])] for pair in ends.values())


def test_a_trace_of_several_timelines_is_one_file(files, capsys):
    code, answer = compared(capsys, files[0], "--trace", files[0].with_name("folder"))
    assert code == 2
    assert "one .json or .json.gz file" in answer["error"]


@pytest.mark.parametrize(
    "sample", [{"flop": 10**400, "tokens": 10**400}, {"flop": -5, "tokens": True}, {"flop": "x"}, 7]
)
def test_what_a_sample_cannot_be_is_not_counted(files, tmp_path, capsys, sample):
    write_plan(tmp_path / "odd.json", replace(PLAN, extra={"sample": sample}))
    code, body = compared(capsys, tmp_path / "odd.json")
    assert (code, body["rows"][0]["tokens_per_s"], body["rows"][0]["mfu"]) == (0, None, None)


def test_plans_under_other_habits_of_a_trainer_are_marked(files, capsys):
    other = replace(PLAN, assumptions=replace(PLAN.assumptions, habits=("plain attention",)))
    write_plan(files[0].with_name("other.json"), other)
    code, answer = compared(capsys, files[0], files[0].with_name("other.json"))
    assert (code, [row["differs_in"] for row in answer["rows"]]) == (0, [[], ["habits"]])
    assert main(["compare", str(files[0]), str(files[0].with_name("other.json"))]) == 0
    assert "plain attention" in capsys.readouterr().out


def test_machines_of_one_name_that_clusters_say_otherwise_are_another_assumption():
    cluster = PLAN.cluster
    slower = replace(PLAN, cluster=replace(cluster, speeds=((1, 0.5),)))
    smaller = replace(PLAN, cluster=replace(cluster, devices=(replace(cluster.devices[0], memory_bytes=2**30),)))
    group = cluster.groups[0]
    narrower = replace(PLAN, cluster=replace(cluster, groups=(replace(group, latency_ns=group.latency_ns + 1),)))
    others = [ComparedPlan(name, plan) for name, plan in (("a", slower), ("b", smaller), ("c", narrower))]
    found = Comparison((ComparedPlan("own", PLAN), *others))
    assert [found.differing(each) for each in found.plans] == [[], ["speeds"], ["devices"], ["links"]]
    assert not found.comparable


def test_devices_whose_prices_rest_on_other_ground_do_not_compare_without_a_word():
    """A B200 stands on constants, an MI355X on its data sheet."""
    plans = []
    for name in ("b200-sxm-180", "mi355x-288"):
        device = replace(PLAN.cluster.devices[0], type="cuda", catalogue=name)
        known = replace(PLAN.assumptions, estimated=(ROOFLINE,), precision="bf16")
        cluster = replace(PLAN.cluster, devices=(device, *PLAN.cluster.devices[1:]))
        plans.append(replace(PLAN, cluster=cluster, assumptions=known))
    found = Comparison(tuple(ComparedPlan(plan.cluster.devices[0].catalogue, plan) for plan in plans))
    assert [set(standings(plan).values()) for plan in (*plans, PLAN)] == [{"fitted"}, {"datasheet"}, {"measured"}]
    assert "standing" in found.differing(found.plans[1])
    assert not found.comparable


@pytest.mark.parametrize("said", [{"step_time_ns": 125}, {"peak_memory_bytes": (1, 1, 1, 1)}])
def test_a_plan_that_says_another_step_or_peak_than_its_orders_take_is_not_compared(said, tmp_path, capsys):
    path = tmp_path / "plan.json"
    write_plan(path, replace(PLAN, prediction=replace(PLAN.prediction, **said)))
    assert main(["compare", str(path)]) == 7
    assert "its orders take 124 ns and 25 bytes by its own costs" in capsys.readouterr().err


def test_a_timeline_in_which_nothing_takes_time_is_refused(files, tmp_path, capsys):
    nothing = tmp_path / "nothing.json"
    write_timeline(nothing, Timeline(4, tuple(replace(span, start_ns=0, end_ns=0) for span in MEASURED.spans)))
    assert main(["compare", str(files[0]), "--measured", str(nothing)]) == 3
    assert "take no time at all" in capsys.readouterr().err


def test_plans_of_unlike_batches_compare_by_sample_and_say_so(tmp_path):
    """Twice the samples in the same step are the quicker plan, in words, on the page and in the picture."""
    twice = replace(PLAN, batch=Batch(8, 4, 2))
    found = Comparison((ComparedPlan("own", PLAN), ComparedPlan("twice", twice)))
    assert [found.differing(each) for each in found.plans] == [[], ["batch"]]
    assert found.by_sample
    assert found.comparable
    assert [each.shared_ns(each.predicted.step_time_ns) for each in found.plans] == [31, 16]
    write_page(tmp_path / "page.html", found)
    assert "twice is the quickest, 16 ns a sample" in (tmp_path / "page.html").read_text()
    assert [ax.get_xlabel() for ax in found.figure().axes[-2:]] == ["time of a sample (ms)"] * 2
    assert "compare by sample" in str(found.text()[0])
    assert not Comparison((ComparedPlan("own", PLAN), ComparedPlan("own", PLAN))).by_sample
