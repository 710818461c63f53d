"""torch's compute_only CSV both ways: what torch writes we read, what we write torch takes."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.errors import InvalidInput, ReadableButWrong, UsageError
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import parse_action
from simulator.engine import simulate
from simulator.lowering import close_step, lower
from simulator.schedule import Schedule, chain_edges, stage_graph
from simulator.schedules import build_schedule
from simulator.torch_csv import read_torch_csv, schedule_from_torch_csv, torch_csv

CHAIN = Costs((StageCost(1, 1, 1),) * 2, tuple(chain_edges(2)))
TEXT = "0F0,0F1,,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n"


def test_rows_are_ranks_and_empty_cells_are_idle() -> None:
    schedule = schedule_from_torch_csv(TEXT)
    assert [" ".join(map(str, order)) for order in schedule.orders] == ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1I1 1W1"]
    assert schedule.num_microbatches == 2
    assert schedule.graph.ranks == ((0,), (1,))


def test_writing_leaves_out_what_torch_adds_itself() -> None:
    schedule = build_schedule("1f1b", CHAIN, 2)
    closed = close_step(schedule, (True, True), optimizer=True)
    lowered = lower(closed, simulate(closed, CHAIN))
    assert torch_csv(lowered) == torch_csv(schedule) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("gpipe", 4), ("1f1b", 4), ("zb-h1", 4), ("interleaved-1f1b", 2), ("looped-bfs", 2)],
)
def test_what_is_written_reads_back(name: str, ranks: int, tmp_path: Path) -> None:
    costs = Costs((StageCost(1, 1, 1),) * 4, tuple(chain_edges(4)), tuple((s % ranks,) for s in range(4)))
    schedule = build_schedule(name, costs, 4)
    (tmp_path / "schedule.csv").write_text(torch_csv(schedule))
    assert read_torch_csv(tmp_path / "schedule.csv") == replace(schedule, name="torch-csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0garbage,0B0\n", "row 1, column 1: '0F0garbage'"),
        ("0F0,0B0\n1F0,1SEND_F0\n", "row 2, column 2: '1SEND_F0'"),
        ("0F0,(0F1;0W0)OVERLAP_F_B\n", "row 1, column 2"),
        ("0F,0B0\n", "row 1, column 1: '0F'"),
        ("\n", "no action at all"),
        ("0F0,0B0\n2F0,2B0\n", "stage 1 is nowhere, and 2 is"),
        ("0F0,0B0\n,\n", "row 2 has no stage"),
        ("0F0,0B900000000\n", "micro-batch 900000000 in 2 actions"),
    ],
)
def test_what_is_no_compute_only_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        schedule_from_torch_csv(text, "orders.csv")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0B1", "0B0", "duplicated: rank 0, step 3: 0B0 is at step 2 already"),
        (",0B1", "", "missing: rank 0, step 3: 0B1 is missing"),
        ("1F0,1B0", "1B0,1F0", "backward-before-forward: rank 1, step 0"),
        ("1I1,1W1", "1W1,1I1", "weight-before-input: rank 1, step 3"),
        ("0B1", "0B1,1F0", "wrong-rank"),
    ],
)
def test_a_schedule_that_is_not_legal_is_refused_with_its_cell(old: str, new: str, message: str) -> None:
    with pytest.raises(ReadableButWrong) as caught:
        schedule_from_torch_csv(TEXT.replace(old, new))
    assert message in str(caught.value)


def hand(costs: Costs, *rows: str, num_microbatches: int = 1, num_slices: int = 1) -> Schedule:
    orders = tuple(tuple(parse_action(text) for text in row.split()) for row in rows)
    return Schedule("hand", stage_graph(costs), num_microbatches, orders, num_slices)


STAGE = StageCost(1, 1, 1)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            hand(Costs((STAGE,), (), ranks=((0, 1),)), "0F0 0B0", "0F1 0B1", num_microbatches=2),
            "stage 0 runs on the ranks",
        ),
        (
            hand(Costs((STAGE,), (), multiples=(2,)), "0F0 0B0", num_microbatches=2),
            "takes 2 micro-batches in one action",
        ),
        (hand(Costs((replace(STAGE, backward=False),), ()), "0F0"), "stage 0 has no backward"),
        (hand(Costs((STAGE,) * 2, ()), "0F0 0B0", "1F0 1B0"), "stage 1 takes nothing"),
        (
            hand(
                Costs((STAGE,) * 3, (EdgeCost(0, 1), EdgeCost(1, 2), EdgeCost(0, 2))), "0F0 0B0", "1F0 1B0", "2F0 2B0"
            ),
            "stage 0 feeds stage 2",
        ),
        (hand(Costs((STAGE,), ()), "0F0.0 0F0.1 0B0.1 0B0.0", num_slices=2), "2 slices"),
        (hand(Costs((STAGE,), ()), "0F0 0R0 0B0"), "recomputes of their own"),
    ],
)
def test_what_the_format_cannot_say_is_refused(schedule: Schedule, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        torch_csv(schedule)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_torch_csv(tmp_path / "none.csv")


def test_torch_takes_what_is_written() -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    costs = Costs((StageCost(1, 1, 1),) * 4, tuple(chain_edges(4)), tuple((s % 2,) for s in range(4)))
    rows = csv.reader(torch_csv(build_schedule("interleaved-1f1b", costs, 4)).splitlines())
    actions = {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
    assert schedules._validate_schedule(actions, 2, 4, 4) == {0: 0, 1: 1, 2: 0, 3: 1}


@pytest.mark.parametrize("name", ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"])
def test_what_torch_writes_is_read(name: str, tmp_path: Path) -> None:
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    rows = visualizer.get_schedule_ops(name, 4, 8, 2)
    with (tmp_path / "torch.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    schedule = read_torch_csv(tmp_path / "torch.csv")
    assert (schedule.graph.num_stages, schedule.graph.num_ranks, schedule.num_microbatches) == (8, 4, 8)
    assert [list(map(str, order)) for order in schedule.orders] == [[str(a) for a in row if a] for row in rows]
