"""The trace file: what Perfetto and Holistic Trace Analysis rely on."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import UsageError
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import Action, Kind
from simulator.engine import simulate
from simulator.schedule import Schedule, stage_graph
from simulator.timeline import Timeline
from simulator.trace import write_trace

COSTS = Costs(
    tuple(StageCost(1000, 1500, 500, activation_bytes=64, static_bytes=7, reduce_ns=250) for _ in range(2)),
    (EdgeCost(0, 1, 2300, 16),),
)


@pytest.fixture(name="timeline")
def small_timeline() -> Timeline:
    """Two ranks, three micro-batches, all forwards first: sends are longer than forwards and overlap."""
    orders = tuple(
        (*tuple(Action(kind, stage, k) for kind in (Kind.F, Kind.B) for k in range(3)), Action(Kind.REDUCE, stage))
        for stage in range(2)
    )
    return simulate(Schedule("gpipe", stage_graph(COSTS), 3, orders), COSTS)


def events(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["traceEvents"])


def test_times_are_microseconds_with_the_nanoseconds_as_decimals(timeline: Timeline, tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", timeline)
    found = {(e["pid"], e["name"]): (e["ts"], e["dur"]) for e in events(tmp_path / "t.json") if e["ph"] == "X"}
    assert found[0, "0F0"] == (0.0, 1.0)
    assert found[1, "1F0"] == (3.3, 1.0)
    assert found[0, "0SEND_F0>1"] == (1.0, 2.3)
    assert found[1, "1RECV_F0<0"] == (1.0, 2.3)
    assert len(found) == 2 * (6 + 3 + 3 + 1)


def test_events_on_one_track_never_overlap_though_sends_do(timeline: Timeline, tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", timeline)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in events(tmp_path / "t.json"):
        if e["ph"] == "X":
            tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for rows in tracks.values():
        rows.sort()
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(rows))
    assert {tid for pid, tid in tracks if pid == 0} == {1, 1001, 1002, 1003, 2001, 2002, 3001}  # three at once


def test_an_arrow_leads_from_every_send_to_its_receive(timeline: Timeline, tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", timeline)
    rows = events(tmp_path / "t.json")
    slices = [e for e in rows if e["ph"] == "X"]

    def slice_of(arrow: dict[str, Any]) -> str:
        inside = [
            e["name"]
            for e in slices
            if (e["pid"], e["tid"]) == (arrow["pid"], arrow["tid"]) and e["ts"] <= arrow["ts"] < e["ts"] + e["dur"]
        ]
        assert len(inside) == 1
        return str(inside[0])

    starts = {e["id"]: slice_of(e) for e in rows if e["ph"] == "s"}
    ends = {e["id"]: slice_of(e) for e in rows if e["ph"] == "f" and e["bp"] == "e"}
    assert {(starts[number], ends[number]) for number in starts} == {
        *((f"0SEND_F{k}>1", f"1RECV_F{k}<0") for k in range(3)),
        *((f"1SEND_B{k}>0", f"0RECV_B{k}<1") for k in range(3)),
    }


def test_memory_is_a_counter_of_each_rank(timeline: Timeline, tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", timeline)
    for rank, points in enumerate(timeline.memory):
        rows = [e for e in events(tmp_path / "t.json") if e["ph"] == "C" and e["pid"] == rank]
        assert [(e["ts"], e["args"]["bytes"]) for e in rows] == [(t / 1000, size) for t, size in points]


def test_a_folder_gets_one_file_a_rank_as_holistic_trace_analysis_reads_it(timeline: Timeline, tmp_path: Path) -> None:
    write_trace(tmp_path / "ranks", timeline)
    assert sorted(p.name for p in (tmp_path / "ranks").iterdir()) == ["rank0.json", "rank1.json"]
    for rank in range(2):
        content = json.loads((tmp_path / "ranks" / f"rank{rank}.json").read_text())
        assert content["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": 2}
        kernels = [e for e in content["traceEvents"] if e.get("cat") == "kernel"]
        assert {e["pid"] for e in kernels} == {rank}
        assert all(e["args"]["stream"] > 0 for e in kernels)
        assert len({e["args"]["correlation"] for e in kernels}) == len(kernels)
        transfers = {e["name"].split()[0] for e in kernels if e["args"]["kind"] not in ("F", "B")}
        assert transfers == {"ncclDevKernel_SendRecv", "ncclDevKernel_AllReduce"}
        (step,) = (e for e in content["traceEvents"] if e["name"] == "ProfilerStep#0")
        assert (step["ts"], step["dur"]) == (0.0, timeline.step_time_ns / 1000)


def test_compressed_traces_hold_the_same(timeline: Timeline, tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", timeline)
    write_trace(tmp_path / "t.json.gz", timeline)
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == (tmp_path / "t.json").read_bytes()


def test_other_suffixes_are_refused(timeline: Timeline, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"written as \.json, \.json\.gz, or into a folder"):
        write_trace(tmp_path / "t.txt", timeline)


def test_the_same_timeline_gives_the_same_bytes(timeline: Timeline, tmp_path: Path) -> None:
    write_trace(tmp_path / "a.json", timeline)
    write_trace(tmp_path / "b.json", timeline)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
