"""Pins: what a person fixes is what the plan does, and each mistake has its own message."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.errors import InvalidInput, NoPlanFits, UsageError
from planner.answer.decide import plan
from planner.checker import check_plan
from planner.commands import main
from planner.question.pins import read_pins
from planner.search.loop import PortfolioSearch
from tests.properties.exact_promises import COUNTED
from tests.support.pipelines import pipelines
from tests.support.random_profiles import branches, chain, profile_of

MODULES = ("vision", "vision", "vision.pool", "text", "text", "head")


def problem_of(folder, text, profile=None, num_devices=3, **options):
    path = folder / "pins.toml"
    path.write_text(text)
    profile = profile or branches(2, 3)
    options = {"optimizer": "none", "pins": read_pins(path)} | options
    return pipelines(profile, num_devices, options.pop("global_batch", 8), **options)


def planned(folder, text, profile=None, **options):
    problem = problem_of(folder, text, profile, **options)
    found = plan(problem)
    assert not check_plan(found, problem.profile.graph)
    return found


def stage(operators, **keys):
    lines = [f"operators = {json.dumps(operators)}", *(f"{key} = {value}" for key, value in keys.items())]
    return "\n".join(["[[stage]]", *lines, ""])


TWO_BRANCHES = (
    stage(["op[0-2]"], ranks="[0, 1]", config='{data = 2, zero = 1, recompute = "full"}')
    + stage(["op[3-5]"], ranks=[2])
    + stage(["*"], ranks=[2])
)


def test_the_plan_is_exactly_the_pinned_stages(tmp_path):
    found = planned(tmp_path, TWO_BRANCHES, optimizer="adam", schedule="graph-1f1b")
    assert [s.operators for s in found.stages] == [("op0", "op1", "op2"), ("op3", "op4", "op5"), ("op6", "op7")]
    assert [s.ranks for s in found.stages] == [(0, 1), (2,), (2,)]
    assert [(s.config.data, s.config.zero, s.config.recompute) for s in found.stages] == [
        (2, 1, "full"),
        (1, 0, "none"),
        (1, 0, "none"),
    ]
    assert [(e.source, e.target, e.tensors, e.size_bytes) for e in found.edges] == [
        (0, 2, ("t2",), 1000),
        (1, 2, ("t5",), 1000),
    ]
    assert found.schedule == "graph-1f1b"
    assert found.search.status == "bounded"
    assert found.search.lower_bound_ns <= found.search.objective == found.prediction.step_time_ns
    assert found.search.scope.startswith("orders of the micro-batches of 3 pinned stages on these ranks")


def test_the_micro_batches_in_flight_of_a_plan_given_back_are_kept(tmp_path):
    text = stage(["op[0-3]"], in_flight=4) + stage(["op[4-7]"], in_flight=1)
    found = planned(tmp_path, text, schedule="graph-auto", profile=chain(8))
    assert found.in_flight == (4, 1)
    assert found.orders[0][:8:2] == ("0F0", "0F1", "0F2", "0F3")


def test_a_recomputing_stage_runs_its_forward_again_before_each_backward(tmp_path):
    found = planned(tmp_path, TWO_BRANCHES, schedule="graph-1f1b")
    cost, orders = found.stages[0].cost, found.orders
    assert cost.recompute_ns == cost.forward_ns == 3000
    computed = [[text for text in order if text[1] in "FRB" and text[2:].isdigit()] for order in orders]
    assert computed[0][:4] == ["0F0", "0F2", "0R0", "0B0"]
    assert {text[1] for text in computed[2]} == {"F", "B"}


def test_recompute_takes_less_memory_and_more_time(tmp_path):
    again = planned(tmp_path, stage(["op[0-3]"], config='{recompute = "full"}') + stage(["*"]), chain(6),
                    schedule="graph-1f1b")  # fmt: skip
    kept = planned(tmp_path, stage(["op[0-3]"]) + stage(["*"]), chain(6), schedule="graph-1f1b")
    assert again.prediction.peak_memory_bytes[0] < kept.prediction.peak_memory_bytes[0]
    # Eight forwards of 4000 ns more, the first of them partly while its gradient is still on the way.
    assert (kept.prediction.step_time_ns, again.prediction.step_time_ns) == (100_200, 100_200 + 8 * 4000 - 4100)


def test_zero_1_halves_the_optimizers_state_on_two_replicas(tmp_path):
    terms = dict(planned(tmp_path, TWO_BRANCHES, optimizer="adam").stages[0].cost.memory_terms)
    assert [terms[name] for name in ("parameters", "gradients", "optimizer")] == [60_000, 60_000, 60_000]


def test_replicas_and_stages_that_share_a_parameter_reduce(tmp_path):
    tied = profile_of([1000] * 4, [(0, 1), (1, 2), (2, 3)], tied=[(0, 3)])
    found = planned(
        tmp_path, stage(["op0"]) + stage(["op1", "op2"], ranks=[1, 2]) + stage(["op3"]), tied, num_devices=4
    )
    assert [s.ranks for s in found.stages] == [(0,), (1, 2), (3,)]
    assert [sum(text == f"{s}REDUCE" for order in found.orders for text in order) for s in range(3)] == [1, 2, 1]
    # A ring over two ranks: two messages of half the bytes, each 50 ns and 1 ns a byte.
    assert [s.cost.reduce_ns for s in found.stages] == [20_100, 40_100, 20_100]


def test_an_action_of_two_microbatches_sends_and_keeps_twice_as_much(tmp_path):
    found = planned(tmp_path, stage(["op[0-2]"], microbatch_multiple=2) + stage(["*"]), chain(6))
    assert found.edges[0].size_bytes == 2000
    assert [s.cost.forward_ns for s in found.stages] == [6000, 3000]
    assert [s.cost.activation_bytes for s in found.stages] == [24_000, 13_000]


def test_stages_in_a_loop_run_interleaved(tmp_path):
    pins = "".join(stage([f"op{i}"], ranks=[i % 2]) for i in range(4))
    found = planned(tmp_path, pins, chain(4), num_devices=2, schedule="interleaved-1f1b")
    assert found.schedule == "interleaved-1f1b"
    assert [s.ranks for s in found.stages] == [(0,), (1,), (0,), (1,)]


def test_the_backward_may_be_split_where_the_schedule_does(tmp_path):
    pins = stage(["op[01]"], config='{recompute = "full"}') + stage(["*"])
    found = planned(tmp_path, pins, chain(4), num_devices=2, schedule="zb-h1")
    order = found.orders[0]
    assert order.index("0R0") < order.index("0I0") < order.index("0W0")


def test_stages_are_numbered_as_data_flows(tmp_path):
    found = planned(tmp_path, stage(["op[23]"]) + stage(["op[01]"]), chain(4), num_devices=2)
    assert [(s.operators[0], s.ranks) for s in found.stages] == [("op0", (1,)), ("op2", (0,))]


def test_patterns_match_module_paths(tmp_path):
    profile = profile_of([1000] * 6, [(0, 1), (1, 2), (3, 4), (2, 5), (4, 5)])
    graph = profile.graph
    named = tuple(replace(o, module=m) for o, m in zip(graph.operators, MODULES, strict=True))
    profile = replace(profile, graph=replace(graph, operators=named))
    found = planned(tmp_path, stage(["vision*"]) + stage(["text"]) + stage(["head"]), profile)
    assert [len(s.operators) for s in found.stages] == [3, 2, 1]


def test_operators_together_stay_in_one_stage_of_the_search(tmp_path):
    pins = '[[together]]\noperators = ["op1", "op4"]\n'
    found = planned(tmp_path, pins, chain(6), deterministic_limit=1.0)
    assert any({"op1", "op2", "op3", "op4"} <= set(s.operators) for s in found.stages)
    assert "pins: 1 together" in found.search.scope


def apart(*operators):
    return f"[[apart]]\noperators = {json.dumps(operators)}\n"


def stages_with(found, names):
    return {index for index, s in enumerate(found.stages) for name in s.operators if name in names}


def test_the_search_keeps_branches_apart(tmp_path):
    free = planned(tmp_path, '[[together]]\noperators = ["op0"]\n', deterministic_limit=1.0, num_devices=2)
    found = planned(tmp_path, apart("op[0-2]", "op[3-5]"), deterministic_limit=1.0, num_devices=2)
    assert not stages_with(found, {"op0", "op1", "op2"}) & stages_with(found, {"op3", "op4", "op5"})
    assert "1 apart" in found.search.scope
    assert found.search.objective >= free.search.objective


def test_the_bound_of_the_search_knows_what_is_apart(tmp_path):
    # The one cut is behind op0, so five operators of 3000 ns each work on eight micro-batches: far from balance.
    whole = {"num_devices": 2, "deterministic_limit": 1.0, "schedule": "graph-1f1b"}
    found = planned(tmp_path, apart("op0", "op1"), chain(6), **whole)
    free = planned(tmp_path, '[[together]]\noperators = ["op0"]\n', chain(6), **whole)
    assert [s.operators[0] for s in found.stages] == ["op0", "op1"]
    assert 8 * 5 * 3000 <= found.search.lower_bound_ns <= found.search.objective
    assert free.search.objective < found.search.lower_bound_ns


@pytest.mark.parametrize("planner", ["chain", "uniform"])
def test_stages_in_one_line_keep_apart_what_pins_say(tmp_path, planner):
    found = planned(tmp_path, apart("op2", "op3"), chain(6), num_devices=2, planner=planner)
    assert not stages_with(found, {"op2"}) & stages_with(found, {"op3"})


def test_neighbours_of_a_large_graph_can_be_apart(tmp_path):
    found = planned(tmp_path, apart("op100", "op101"), chain(200), num_devices=3, planner="chain")
    assert not stages_with(found, {"op100"}) & stages_with(found, {"op101"})


def test_what_is_apart_does_not_run_on_one_device(tmp_path):
    with pytest.raises(NoPlanFits, match=r"keeps to the \[\[apart\]\] pins: the nearest has 1 stages and 3 pieces"):
        planned(tmp_path, apart("op[0-2]", "op[3-5]"), num_devices=1)


def test_more_patterns_apart_than_stages_are_refused_with_a_proof(tmp_path):
    with pytest.raises(NoPlanFits, match="proved for all cuts"):
        planned(tmp_path, apart("op0", "op2", "op4"), chain(6), num_devices=2, deterministic_limit=1.0)


def test_operators_that_no_cut_divides_are_not_kept_apart(tmp_path):
    with pytest.raises(InvalidInput, match=r"'op2' is to be apart from what 'op1' matches, and no cut divides the two"):
        planned(tmp_path, apart("op1", "op2"), chain(4, in_place=frozenset({2})))


REFUSED = {
    "pattern that matches nothing": (stage(["op1", "opp*"]), r"/stage/0: the pattern 'opp\*' matches no .*near are op"),
    "operator in two stages": (stage(["op[0-4]"]) + stage(["op[4-7]"]), r"/stage/1: .*'op4' is in stage 0 already"),
    "nothing left for the rest": (stage(["op*"]) + stage(["*"]), r"/stage/1: nothing is left for this stage"),
    "cycle": (stage(["op0", "op2"]) + stage(["op1"]) + stage(["*"]), r"the stages \[0, 1\] each read an output"),
    "rank out of range": (stage(["*"], ranks=[3]), r"rank 3 is not one of the 3 devices"),
    "rank left out": (stage(["*"], ranks=[1]), r"ranks are numbered from 0 without a gap"),
    "rank twice": (stage(["*"], ranks=[0, 0]), r"/stage/0/ranks: .*each named once"),
    "data other than ranks": (
        stage(["*"], ranks=[0, 1], config="{data = 3}"),
        r"has 2 ranks, and data x tensor x context are 3",
    ),
    "tensor parallel": (stage(["*"], config="{tensor = 2}"), r"has 1 ranks, and data x tensor x context are 2"),
    "unknown key": (stage(["*"], rank=0), r"unknown key 'rank'; allowed are operators, ranks, config"),
    "unknown table": ("[[before]]\noperators = ['a']\n", r"unknown key 'before'; allowed are together, apart, stage"),
    "no pattern": (stage([]), r"at least one pattern is needed"),
    "no pin": ("", r"no pin; give \[\[together\]\]"),
    "apart in one stage": ("[[apart]]\noperators = ['op0', 'op7']\n" + stage(["*"]), r"'op7' is to be apart from what"),
    "together in two": ("[[together]]\noperators = ['op0', 'op7']\n" + TWO_BRANCHES, r"'op0' and 'op7' are to be"),
    "in flight without graph-auto": (stage(["*"], in_flight=2), r"in_flight goes with --schedule graph-auto"),
    "multiple does not divide": (stage(["*"], microbatch_multiple=3), r"3 micro-batches in one action.*divide 8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_each_mistake_has_its_own_message(tmp_path, case):
    text, message = REFUSED[case]
    with pytest.raises(InvalidInput, match=message):
        planned(tmp_path, text)


def test_more_stages_than_devices_need_their_ranks_given(tmp_path):
    with pytest.raises(InvalidInput, match="no ranks are given, and the 1 devices are all named"):
        planned(tmp_path, stage(["op0"]) + stage(["*"]), num_devices=1)


def test_an_in_place_operator_stays_with_its_producer(tmp_path):
    with pytest.raises(InvalidInput, match=r"'op1', 'op2' change one value in place and are in the stages \[0, 1\]"):
        planned(tmp_path, stage(["op[01]"]) + stage(["*"]), chain(4, in_place=frozenset({2})))


def test_what_no_stage_names_is_searched_on_the_ranks_that_are_left(tmp_path):
    found = planned(tmp_path, stage(["op[0-2]"], ranks=[2]), branches(2, 3), num_devices=3, deterministic_limit=0.05)
    assert [s.ranks for s in found.stages if "op0" in s.operators] == [(2,)]
    assert [s.operators for s in found.stages if "op0" in s.operators] == [("op0", "op1", "op2")]
    assert sorted(rank for s in found.stages for rank in s.ranks) == [0, 1, 2]
    assert "1 stages" in found.search.scope


def test_a_pinned_stage_may_be_configured_as_other_trainers_run_it(tmp_path):
    pinned = stage(["*"], ranks=[0, 1], config='{data = 2, recompute = "selective"}')
    found = planned(tmp_path, pinned, num_devices=2)
    assert found.stages[0].config.recompute == "selective"
    assert "executor" not in found.runs_on
    with pytest.raises(NoPlanFits, match="--target executor does not take this plan: selective recompute"):
        planned(tmp_path, pinned, num_devices=2, target="executor")


def test_a_stage_pinned_to_divide_parameters_runs_where_all_have_as_many_replicas(tmp_path):
    """Replicas that gather together work in step; a neighbour with another number of them would hold some up."""
    whole = planned(
        tmp_path, stage(["*"], ranks=[0, 1], config="{data = 2, zero = 3}"), num_devices=2, target="executor"
    )
    assert (whole.stages[0].reduce, "executor" in whole.runs_on) == ("microbatch", True)
    assert {each.kind for each in whole.stages[0].collectives} == {"all_gather", "reduce_scatter"}
    uneven = stage(["op[0-2]"], ranks=[0, 1], config="{data = 2, zero = 3}") + stage(["*"], ranks=[2])
    with pytest.raises(NoPlanFits, match=r"that gather parameters together \(ZeRO-3\), and stage 1 has 1 replicas"):
        planned(tmp_path, uneven, num_devices=3, target="executor")


def test_pinned_stages_keep_to_the_most_that_are_asked_for(tmp_path):
    with pytest.raises(UsageError, match="--max-stages 2, and the pins give 3 stages"):
        planned(tmp_path, TWO_BRANCHES, max_stages=2)


def test_a_schedule_that_does_not_run_on_the_ranks_says_so(tmp_path):
    with pytest.raises(UsageError, match="1f1b runs one stage a rank, and rank 2 has the stages"):
        planned(tmp_path, TWO_BRANCHES, schedule="1f1b")


def test_a_pinned_plan_over_the_memory_limit_is_refused(tmp_path):
    with pytest.raises(NoPlanFits, match=r"no plan fits into memory: .* peaks at"):
        planned(tmp_path, TWO_BRANCHES, memory_limit_bytes=1000)


def test_the_command_takes_a_pin_file(tmp_path, capsys):
    from costmodel.model.profile import write_profile

    write_profile(tmp_path / "profile.json", branches(2, 3))
    (tmp_path / "pins.toml").write_text(TWO_BRANCHES)
    words = [
        "plan",
        "profile.json",
        "--devices",
        "3",
        "--batch",
        "8",
        "--pin",
        "pins.toml",
        "-o",
        "plan.json",
        "--json",
    ]
    code = main([str(tmp_path / word) if Path(word).suffix else word for word in words])
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert answer["status"] == "optimal"
    assert [s["ranks"] for s in answer["stages"]] == [[0, 1], [2], [2]]
    assert json.loads((tmp_path / "plan.json").read_text())["provenance"]["options"]["pins"]["stage"][2] == ["*"]


def test_the_bound_of_pinned_stages_does_not_depend_on_who_made_their_candidates(tmp_path):
    """Families that differ in what pins fix hold the same stages, and several may make them."""
    search = PortfolioSearch(replace(problem_of(tmp_path, TWO_BRANCHES), effort=COUNTED), None)
    outcome = search.run()
    assert outcome.bound.ns
    family_of = outcome.prepared.family_of
    for candidate, family in family_of.items():
        if candidate.schedule == "graph-zb":
            family_of[candidate] = replace(family, config=replace(family.config, zero=3 - family.config.zero))
    search.state.bounds.take_orders_of_pinned()
    assert search.state.bounds.least_ns == outcome.bound.ns


def test_pinned_stages_in_a_loop_are_tried_under_schedules_of_loops_too(tmp_path):
    loop = "".join(stage([f"op{i}"], ranks=[i % 2]) for i in range(8))
    found = planned(tmp_path, loop, chain(8, work=1_000_000), num_devices=2)
    named = planned(tmp_path, loop, chain(8, work=1_000_000), num_devices=2, schedule="interleaved-1f1b")
    assert named.schedule == "interleaved-1f1b"
    assert (found.schedule, found.prediction.step_time_ns <= named.prediction.step_time_ns) == ("graph-zb", True)


def test_a_plan_where_pins_should_be_says_where_it_goes(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"format": "penstock-plan"}')
    with pytest.raises(InvalidInput, match=r"not TOML: .*; pins are tables .*, a plan is for --from"):
        read_pins(tmp_path / "plan.json")
    with pytest.raises(InvalidInput, match=r"none\.toml: [^;]*(;[^;]*)?$"):
        read_pins(tmp_path / "none.toml")
