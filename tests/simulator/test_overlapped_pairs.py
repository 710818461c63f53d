"""Overlapped pairs: a forward and the backward behind it start and end as one, in a time of their own."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs, PairCost, StageCost
from costmodel.stages.costs_file import read_costs, write_costs
from planner.commands import main
from simulator.actions import Action, Kind, parse_action
from simulator.bounds import bound_of
from simulator.bubbles import bubble_causes
from simulator.critical_path import critical_path
from simulator.engine import Structure, simulate
from simulator.lowering import lower
from simulator.schedule import Schedule, stage_graph
from simulator.schedules import build_schedule
from simulator.torch_csv import read_torch_csv, schedule_from_torch_csv, torch_csv
from simulator.uniform import share_bytes, uniform_costs
from simulator.validation import validate_schedule
from tests.properties.engines_agree import disagreement
from tests.support.random_cases import random_case

TWO = Costs((StageCost(4, 3, 3), StageCost(4, 3, 3)), (), ((0,), (0,)), (1, 1), (PairCost(0, 1, 7),))
"""Two stages of one rank that have nothing to do with each other."""


def orders_of(*rows: str) -> tuple[tuple[Action, ...], ...]:
    return tuple(tuple(map(parse_action, row.split())) for row in rows)


def two(*, paired: str = "0F0") -> Schedule:
    return Schedule("two", stage_graph(TWO), 1, orders_of("1F0 0F0 1B0 0B0"), paired=frozenset({parse_action(paired)}))


def test_a_pair_takes_its_own_time_which_its_two_share_as_they_are_long_alone() -> None:
    timeline = simulate(two(), TWO)
    assert [(str(span.action), span.start_ns, span.end_ns) for span in timeline.spans] == [
        ("1F0", 0, 4),
        ("0F0", 4, 6),
        ("1B0", 6, 11),
        ("0B0", 11, 17),
    ]
    assert timeline.compute_ns == 17


def test_both_of_a_pair_start_and_end_with_it_and_memory_with_them() -> None:
    costs = replace(TWO, stages=tuple(replace(stage, activation_bytes=8) for stage in TWO.stages))
    times = Structure(two()).times(costs)
    assert list(zip(times.start.tolist(), times.end.tolist(), strict=True)) == [(0, 4), (4, 11), (4, 11), (11, 17)]
    assert times.memory.points(0) == ((0, 0), (0, 8), (4, 16), (11, 8), (17, 0))


def test_a_pair_waits_for_what_either_needs_and_sends_when_it_ends() -> None:
    """Rank 0 runs the stages 0 and 3, rank 1 those between: 0F1 runs beside 3B0, then 1F1 beside 2B0."""
    costs = uniform_costs(2, 2, 8, 8, 8, 1, placement="wave", pair_ns=14)
    graph = stage_graph(costs)
    orders = orders_of("0F0 3F0 0F1 3B0 3F1 0B0 3B1 0B1", "1F0 2F0 1F1 2B0 2F1 1B0 2B1 1B1")
    paired = frozenset({parse_action("0F1"), parse_action("1F1")})
    timeline = simulate(Schedule("by hand", graph, 2, orders, paired=paired), costs)
    when = {str(span.action): (span.start_ns, span.end_ns) for span in timeline.spans}
    # 0F0 0-4, 1F0 5-9, 2F0 9-13, 3F0 14-18, then the pair 0F1 with 3B0: 18-25, whose results are sent at 25.
    assert when["0F1"][0] == when["3F0"][1] == 18
    assert when["3B0"][1] == 25
    assert when["0SEND_F1>1"] == when["3SEND_B0>2"] == (25, 26)
    # 1F1 is there at 26, the gradient of 2B0 too: 26-33.
    assert (when["1F1"][0], when["2B0"][1]) == (26, 33)


def test_without_a_time_of_its_own_a_pair_takes_that_of_both() -> None:
    assert (
        simulate(two(), replace(TWO, pairs=())).step_time_ns
        == simulate(replace(two(), paired=frozenset()), TWO).step_time_ns
    )


def test_two_engines_agree_on_steps_with_pairs_and_no_bound_is_above_them() -> None:
    seen = 0
    for seed in range(1500):
        case = random_case(Random(seed))
        if not case.schedule.paired:
            continue
        assert disagreement(case) is None
        try:
            structure = Structure(case.schedule, case.p2p, case.optimizer_mode)
        except InvalidInput:
            continue
        seen += 1
        times = structure.times(case.costs)
        assert bound_of(case.schedule, case.costs).ns <= times.step_time_ns, seed
        assert sum(bubble_causes(case.schedule, case.costs, times.timeline()).totals.values()) == (
            case.schedule.graph.num_ranks * times.step_time_ns - times.compute_ns
        )
    assert seen > 60


@pytest.mark.parametrize(("name", "chunks", "placement"), [("dualpipe", 1, "two-way"), ("dualpipe-v", 2, "wave")])
@pytest.mark.parametrize("part", [100, 75, 60])
@pytest.mark.parametrize(("ranks", "microbatches", "weight"), [(4, 8, 400), (8, 32, 1000), (16, 32, 600)])
def test_dualpipes_bubble_is_its_published_closed_form(
    name: str, chunks: int, placement: str, part: int, ranks: int, microbatches: int, weight: int
) -> None:
    """(p / 2 - 1) (t + B - 3 W) (DeepSeek-V3, table 2), folded (p - 1) (t + B - 3 W) / 2: of the rank that idles most.

    Exact where F = I and the pair is no shorter than B alone; t is a part of F + B, or B where that is longer.
    """
    backward = 1000 + weight
    pair = max(part * (1000 + backward) // 100, backward)
    costs = uniform_costs(ranks, chunks, 1000, 1000, weight, 0, placement=placement, pair_ns=pair)
    times = Structure(build_schedule(name, costs, microbatches)).times(costs)
    busy = min(sum(span.end_ns - span.start_ns for span in row) for row in times.timeline().compute_spans)
    turns = ranks / 2 - 1 if chunks == 1 else (ranks - 1) / 2
    assert times.step_time_ns - busy == turns * (pair + backward - 3 * weight)
    assert max(times.peak_memory_bytes) / share_bytes(chunks) == ranks + (1 if chunks == 1 else 0.5)


def test_a_critical_path_through_pairs_takes_the_step() -> None:
    costs = uniform_costs(4, 1, 1000, 1000, 600, 50, placement="two-way", pair_ns=2000)
    schedule = build_schedule("dualpipe", costs, 12)
    timeline = simulate(schedule, costs)
    assert sum(link.time_ns for link in critical_path(schedule, timeline)) == timeline.step_time_ns


@pytest.mark.parametrize(
    ("paired", "message"),
    [
        ("1F0", "1F0 is to overlap a whole backward, but 0F0 follows it"),
        ("1B0", "1B0 is to overlap a whole backward, but 0B0 follows it"),
        ("0F7", "0F7 is to overlap a whole backward, but nothing follows it"),
    ],
)
def test_what_is_no_pair_is_refused(paired: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Structure(two(paired=paired))


def test_a_forward_cannot_run_beside_its_own_backward() -> None:
    schedule = Schedule(
        "own", stage_graph(TWO), 1, orders_of("1F0 1B0 0F0 0B0"), paired=frozenset({Action(Kind.F, 1, 0)})
    )
    with pytest.raises(InvalidInput, match=r"1F0 cannot overlap 1B0, which needs it; pair two micro-batches"):
        Structure(schedule)


@pytest.mark.parametrize("p2p", ["blocking", "nccl"])
def test_ways_of_messages_that_have_no_place_for_pairs_are_refused(p2p: str) -> None:
    with pytest.raises(InvalidInput, match=f"p2p {p2p} has no place for overlapped pairs"):
        Structure(two(), p2p)


def test_pairs_are_not_lowered_for_nothing_runs_them() -> None:
    with pytest.raises(InvalidInput, match="overlapped pairs are simulated, and run by nothing; take latency or links"):
        lower(two(), simulate(two(), TWO))


def test_pairs_that_wait_on_each_other_are_found() -> None:
    """Each rank's pair sends what the pair of the other needs to start."""
    costs = uniform_costs(2, 1, 4, 4, 4)
    orders = orders_of("0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2")
    sound = Schedule("sound", stage_graph(costs), 3, orders)
    assert validate_schedule(sound) == ()
    assert validate_schedule(replace(sound, paired=frozenset({parse_action("0F2")}))) == ()
    orders = orders_of("0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1F1 1B0 1B1 1F2 1B2")
    stuck = Schedule(
        "stuck", stage_graph(costs), 3, orders, paired=frozenset({parse_action("0F1"), parse_action("1F1")})
    )
    assert [problem.kind for problem in validate_schedule(stuck)] == ["waits-on-itself"]
    with pytest.raises(InvalidInput, match="the orders wait on each other"):
        Structure(stuck)


PAIRED = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"


def test_torchs_csv_says_pairs_both_ways() -> None:
    schedule = schedule_from_torch_csv(PAIRED)
    assert schedule.paired == {Action(Kind.F, 0, 1)}
    assert torch_csv(schedule) == PAIRED
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    assert str(schedules._Action.from_str("(0F1;0B0)OVERLAP_F_B")) == "(0F1;0B0)OVERLAP_F_B"


def test_a_pair_that_is_none_names_the_file_and_idle_time_behind_pairs_is_no_communication(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"own\.csv: 0F1 cannot overlap 0B1"):
        schedule_from_torch_csv(PAIRED.replace("(0F1;0B0)OVERLAP_F_B,0B1", "0B0,(0F1;0B1)OVERLAP_F_B"), "own.csv")
    text = "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n1F0,(1F1;1B0)OVERLAP_F_B,(1F2;1B1)OVERLAP_F_B,1B2\n"
    schedule, costs = schedule_from_torch_csv(text), uniform_costs(2, 1, 1000, 1000, 1000, pair_ns=2500)
    causes = bubble_causes(schedule, costs, simulate(schedule, costs)).totals
    assert causes["communication"] == 0
    assert sum(causes.values()) > 0


@pytest.mark.parametrize(
    "cell", ["(0F1;0W0)OVERLAP_F_B", "(0F1;0I0)OVERLAP_F_B", "(0B0;0F1)OVERLAP_F_B", "(0F1)OVERLAP_F_B", "(0F1;0B0)"]
)
def test_a_cell_that_is_no_pair_is_refused(cell: str) -> None:
    with pytest.raises(InvalidInput, match=r"row 1, column 2: .*, an overlapped pair, as in"):
        schedule_from_torch_csv(PAIRED.replace("(0F1;0B0)OVERLAP_F_B", cell))


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    code = main(["simulate", "--microbatches", *words, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert isinstance(told, dict)
    return {**told, "exit": code}


def test_the_command_overlaps_pairs_where_it_is_told_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    times = ("--ranks", "8", "--forward-ns", "1000")
    alone = asked(capsys, "32", "--schedule", "dualpipe", *times)
    overlapped = asked(capsys, "32", "--schedule", "dualpipe", *times, "--pair-ns", "2000")
    assert (alone["step_time_ns"], overlapped["step_time_ns"]) == (99_000, 76_000)
    assert overlapped["lower_bound_ns"] <= overlapped["step_time_ns"]  # type: ignore[operator]


def test_a_pairs_time_for_a_schedule_without_pairs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    told = asked(capsys, "8", "--schedule", "1f1b", "--ranks", "4", "--pair-ns", "100")
    assert told["exit"] == 2
    assert "1f1b has no overlapped pairs; dualpipe, dualpipe-v have" in str(told["error"])


def test_a_users_own_orders_with_pairs_are_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.csv").write_text(PAIRED)
    words = ("2", "--schedule", str(tmp_path / "own.csv"))
    assert asked(capsys, *words)["step_time_ns"] == 12_000
    assert asked(capsys, *words, "--pair-ns", "2000")["step_time_ns"] == 11_000


def test_costs_files_say_what_pairs_take(tmp_path: Path) -> None:
    stage = {"forward_ns": 4, "backward_input_ns": 3, "backward_weight_ns": 3, "rank": 0}
    body = {"format": "penstock-costs", "version": 1, "stages": [stage, stage], "edges": []}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**body, "pairs": [{"forward": 0, "backward": 1, "pair_ns": 7}]}))
    assert read_costs(path).pairs == TWO.pairs
    write_costs(tmp_path / "again.json", TWO)
    assert read_costs(tmp_path / "again.json") == TWO
    for pairs, message in (
        ([{"forward": 0, "backward": 2, "pair_ns": 7}], r"a pair of the stages \(0, 2\)"),
        (
            [{"forward": 0, "backward": 1, "pair_ns": 7}] * 2,
            r"the pair of the stages \(0, 1\) occurs twice; keep one",
        ),
        ([{"forward": 0, "backward": 1}], "the key 'pair_ns' is missing"),
    ):
        path.write_text(json.dumps({**body, "pairs": pairs}))
        with pytest.raises(InvalidInput, match=message):
            read_costs(path)


def test_torchs_own_dualpipe_v_overlaps_the_same_pairs(tmp_path: Path) -> None:
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    with (tmp_path / "torch.csv").open("w", newline="") as file:
        csv.writer(file).writerows(visualizer.get_schedule_ops("DualPipeV", 4, 12, 2))
    theirs = read_torch_csv(tmp_path / "torch.csv")
    costs = uniform_costs(4, 2, 1000, 900, 700, 10, placement="wave", pair_ns=2100)
    ours = build_schedule("dualpipe-v", costs, 12)
    assert theirs.paired == ours.paired
    assert simulate(theirs, costs).step_time_ns == simulate(ours, costs).step_time_ns
