"""Changes to the orders of any schedule: recompute, moved ahead into idle time, and offload."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from planner.commands import main
from simulator.actions import COMPUTE, Kind, parse_action
from simulator.engine import Structure, simulate
from simulator.schedule import Schedule, stage_graph
from simulator.schedules import SCHEDULES, build_schedule
from simulator.transformations import recomputed_ahead, with_offload, with_recompute
from simulator.uniform import uniform_costs
from tests.support.random_cases import random_case


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "dualpipe-v", "hanayo", "interleaved-zb"])
def test_any_schedule_takes_recompute_and_holds_less_for_it(name: str) -> None:
    kind = SCHEDULES[name]
    chunks = 2 if kind.placement == "loop" else kind.chunks
    plain = uniform_costs(4, chunks, 8, 8, 8, placement=kind.placement)
    part = 8 // chunks
    again = replace(plain, stages=(StageCost(part, part, part, recompute_ns=part),) * len(plain.stages))
    schedule = build_schedule(name, plain, 8)
    before = Structure(schedule).times(plain)
    after = Structure(with_recompute(schedule, range(schedule.graph.num_stages))).times(again)
    assert max(after.peak_memory_bytes) < max(before.peak_memory_bytes)
    assert before.step_time_ns < after.step_time_ns <= before.step_time_ns + (8 + 4) * 8


def test_an_r_of_its_own_runs_while_the_gradient_is_on_its_way() -> None:
    costs = Costs((StageCost(10, 10, 10, recompute_ns=10),) * 2, (EdgeCost(0, 1),))
    schedule = build_schedule("1f1b", costs, 1)
    inside = Structure(schedule).times(costs).step_time_ns
    assert inside - Structure(with_recompute(schedule, [0, 1])).times(costs).step_time_ns == 10


def test_recompute_is_refused_where_there_is_nothing_to_do_again() -> None:
    schedule = build_schedule("1f1b", uniform_costs(2, 1, 1, 1, 1), 1)
    with pytest.raises(InvalidInput, match="stage 2 has no backward for R; stages are 0 to 1"):
        with_recompute(schedule, [2])
    with pytest.raises(InvalidInput, match="the orders hold an R of one of these stages already"):
        with_recompute(with_recompute(schedule, [0]), [0])


def simulated(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, object]:
    code = main(["simulate", "--microbatches", "8", *words.split(), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert isinstance(told, dict)
    return {**told, "exit": code}


def test_the_command_runs_forwards_again_in_any_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    """1F1B of two ranks: R hides where a rank waits for its gradient, so the step is longer by m R of the last rank."""
    plain = simulated(capsys, "--schedule 1f1b --ranks 2")
    again = simulated(capsys, "--schedule 1f1b --ranks 2 --recompute all")
    first = simulated(capsys, "--schedule 1f1b --ranks 2 --recompute 0")
    assert (plain["step_time_ns"], again["step_time_ns"]) == (27_000, 35_000)
    assert (plain["peak_activations"], again["peak_activations"]) == ([2, 1], [1, 1])
    assert (first["exit"], first["peak_activations"]) == (0, [1, 1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--schedule 1f1b --ranks 2 --recompute 2",
            "no stage 2 with a backward is there; stages are 0 to 1",
        ),
        ("--schedule 1f1b --ranks 2 --recompute x", "give all, or numbers of stages as 0,3"),
        ("--schedule dualpipe --ranks 2 --pair-ns 9 --recompute all", "take orders, or costs, without pairs"),
        ("--schedule zb-auto --ranks 2 --memory-limit 2 --recompute all", "without what --recompute frees"),
        ("plan.json --recompute all", "--recompute does not go with a plan file"),
        (
            "--schedule 1f1b --ranks 2 --offload all",
            "nothing says how long a copy to the host takes; give --offload-ns",
        ),
        ("--schedule 1f1b --ranks 2 --offload-ns 5", "--offload-ns goes with --offload"),
        ("--schedule 1f1b --ranks 2 --offload all --offload-ns 99999", "copies of 99999 ns to the host"),
        ("--schedule 1f1b --ranks 2 --offload 3 --offload-ns 9", "--offload: no stage 3 with a backward"),
        ("--schedule 1f1b --ranks 2 --recompute all --offload all --offload-ns 9", "all stages recompute"),
        ("--schedule 1f1b --ranks 2 --recompute 0 --offload 0,1 --offload-ns 9", "both name stage 0"),
        ("plan.json --offload all", "--offload does not go with a plan file"),
    ],
)
def test_what_cannot_be_run_again_or_leave_is_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = simulated(capsys, words) if "plan.json" not in words else None
    if told is None:
        assert main(["simulate", *words.split(), "--json"]) == 2
        told = json.loads(capsys.readouterr().out)
    assert (told["exit"], message in str(told["error"])) == (2, True)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "dualpipe-v", "hanayo", "interleaved-zb", "seq1f1b"])
@pytest.mark.parametrize("offload_ns", [4, 20])
def test_offload_takes_no_time_and_never_more_memory(name: str, offload_ns: int) -> None:
    """It leaves out what has no time for two copies, so nothing waits; what is away is held by nobody."""
    kind = SCHEDULES[name]
    chunks, slices = 2 if name == "interleaved-zb" else kind.chunks, 2 if kind.sliced else 1
    costs = uniform_costs(4, chunks, 12, 14, 10, 3, placement=kind.placement, slices=slices, offload_ns=offload_ns)
    schedule = build_schedule(name, costs, 8, num_slices=slices)
    before = Structure(schedule).times(costs)
    offloaded = with_offload(schedule, costs, range(schedule.graph.num_stages))
    after = Structure(offloaded).times(costs)
    assert after.step_time_ns == before.step_time_ns
    assert all(new <= old for new, old in zip(after.peak_memory_bytes, before.peak_memory_bytes, strict=True))
    if offload_ns == 4:
        assert max(after.peak_memory_bytes) < max(before.peak_memory_bytes)


def test_a_copy_leaves_behind_its_forward_and_comes_back_as_late_as_it_can() -> None:
    """1F1B of two ranks, F 10, B 20: F1 is away while its rank waits for B0's gradient and runs B0."""
    costs = Costs((StageCost(10, 10, 10, activation_bytes=8, offload_ns=5),) * 2, (EdgeCost(0, 1),))
    schedule = build_schedule("1f1b", costs, 2)
    offloaded = with_offload(schedule, costs, [0])
    assert " ".join(map(str, offloaded.orders[0])) == "0F0 0OFFLOAD0 0F1 0OFFLOAD1 0RELOAD0 0B0 0RELOAD1 0B1"
    spans = {str(s.action): (s.stream, s.start_ns, s.end_ns) for s in simulate(offloaded, costs).spans if s.rank == 0}
    assert spans["0OFFLOAD0"] == ("offload", 10, 15)
    assert spans["0RELOAD0"] == ("reload", 20, 25)
    assert spans["0B0"][1] == 40


def test_a_rank_without_slack_keeps_its_activations() -> None:
    costs = Costs((StageCost(10, 10, 10, offload_ns=5),) * 2, (EdgeCost(0, 1),))
    schedule = build_schedule("1f1b", costs, 4)
    assert with_offload(schedule, costs, [0, 1]).orders[1] == schedule.orders[1]


def test_offload_of_random_steps_takes_no_time_and_no_memory() -> None:
    """Any graph, replicas, multiples, slices, stages that share ranks; copies of any length."""
    num_away = 0
    for seed in range(150):
        case = random_case(Random(seed))
        schedule, costs = plain(case.schedule), case.costs
        try:
            before = Structure(schedule).times(costs)
        except InvalidInput:  # an order that was scrambled
            continue
        again = {action.stage for order in schedule.orders for action in order if action.kind is Kind.R}
        stages = [s for s in range(len(costs.stages)) if costs.stages[s].backward and s not in again]
        offloaded = with_offload(schedule, costs, stages)
        after = Structure(offloaded).times(costs)
        assert after.step_time_ns == before.step_time_ns, seed
        assert all(new <= old for new, old in zip(after.peak_memory_bytes, before.peak_memory_bytes, strict=True)), seed
        num_away += sum(action.kind is Kind.OFFLOAD for order in offloaded.orders for action in order)
    assert num_away > 100


def plain(schedule: Schedule) -> Schedule:
    """Return a schedule's compute actions."""
    orders = tuple(tuple(action for action in order if action.kind in COMPUTE) for order in schedule.orders)
    return replace(schedule, orders=orders, paired=frozenset())


def test_recompute_moves_ahead_into_idle_time_within_the_limit() -> None:
    """Never longer nor above the limit, the same actions; with room for a few activations more often shorter."""
    num_shorter = 0
    for seed in range(40):
        rng = Random(seed)
        times = [rng.randint(6, 16) for _ in range(4)]
        costs = Costs(
            tuple(StageCost(ns, ns, ns, recompute_ns=ns) for ns in times),
            tuple(EdgeCost(i, i + 1, 2) for i in range(3)),
        )
        schedule = with_recompute(build_schedule(rng.choice(("1f1b", "gpipe", "zb-h1")), costs, 8), range(4))
        before = Structure(schedule).times(costs)
        peak = max(before.peak_memory_bytes)
        assert recomputed_ahead(schedule, costs, peak - 1) == schedule
        for limit in (peak, peak + 8):
            moved = recomputed_ahead(schedule, costs, limit)
            after = Structure(moved).times(costs)
            for new, old in zip(moved.orders, schedule.orders, strict=True):
                assert sorted(map(str, new)) == sorted(map(str, old))
            assert max(after.peak_memory_bytes) <= limit
            assert after.step_time_ns <= before.step_time_ns
        num_shorter += after.step_time_ns < before.step_time_ns
    assert num_shorter > 10


def test_the_command_runs_forwards_again_earlier_where_a_limit_allows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPipe of a slow stage and two fast ones: these wait for forwards, and recompute meanwhile what they hold."""
    costs = tmp_path / "costs.json"
    names = ("forward_ns", "backward_input_ns", "backward_weight_ns", "recompute_ns")
    stages = [dict.fromkeys(names, ns) for ns in (2, 1, 1)]
    costs.write_text(json.dumps({"format": "penstock-costs", "version": 1, "stages": stages}))
    words = f"--schedule gpipe --costs {costs} --recompute all"
    plain, ahead = simulated(capsys, words), simulated(capsys, f"{words} --memory-limit 16")
    less = simulated(capsys, f"{words} --memory-limit 2")
    assert [one["step_time_ns"] for one in (plain, less, ahead)] == [69, 68, 64]
    assert plain["peak_memory_bytes"] == less["peak_memory_bytes"] == [2, 2, 2]
    assert max(ahead["peak_memory_bytes"]) <= 16  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (("0F0", "0OFFLOAD0", "0B0"), "has only one of OFFLOAD and RELOAD; what leaves comes back"),
        (("0F0", "0OFFLOAD0", "0R0", "0RELOAD0", "0B0"), "copies an activation that R makes again"),
        (("0F0", "0B0", "0OFFLOAD0", "0RELOAD0"), "the orders wait on each other at 0B0 on rank 0"),
        (("0F0", "0OFFLOAD0", "0RELOAD0"), "needs a forward before OFFLOAD and a backward behind RELOAD"),
        (("0F0", "0OFFLOAD", "0RELOAD", "0B0"), "0OFFLOAD: stages go up to 0"),
    ],
)
def test_copies_that_lead_nowhere_are_refused(orders: tuple[str, ...], message: str) -> None:
    costs = Costs((StageCost(1, 1, 1),), ())
    schedule = Schedule("own", stage_graph(costs), 1, (tuple(map(parse_action, orders)),))
    with pytest.raises(InvalidInput, match=message):
        Structure(schedule)


def test_the_command_offloads_in_any_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1F1B of four ranks: the first holds all four forwards of its warm-up; with copies of half a forward, three."""
    plain = simulated(capsys, "--schedule 1f1b --ranks 4")
    chart, trace = tmp_path / "away.svg", tmp_path / "trace.json"
    away = simulated(
        capsys,
        f"--schedule 1f1b --ranks 4 --offload all --offload-ns 500 --chart {chart} --trace {trace}",
    )
    assert away["step_time_ns"] == plain["step_time_ns"]
    free = simulated(capsys, "--schedule 1f1b --ranks 4 --offload all --offload-ns 0 --memory-limit 4")
    assert free["peak_activations"] == [1, 1, 1, 1]
    assert str(free["scope"]).endswith("(fused: F and whole B, one stage a rank)")
    assert "to the host" in chart.read_text()
    assert "0RELOAD3" in trace.read_text()
    assert plain["peak_activations"] == [4, 3, 2, 1]
    assert max(away["peak_activations"]) <= 3  # type: ignore[call-overload]
