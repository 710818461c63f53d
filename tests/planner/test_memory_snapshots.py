"""simulate --memory-snapshot: what a rank held, by torch's own snapshot, and what its plan has there."""

import json
from pathlib import Path

import pytest

from planner import Problem, Space, make_plan
from planner.commands import main
from planner.plan import write_plan
from tests.support.described_models import described
from tests.support.repository import GOLDEN

PLAN = GOLDEN / "plan_divided.json"
MIB = 1 << 20


def snapshot(path: Path, trace: list[tuple[str, int]], held: int = 2 * MIB) -> Path:
    """Write what `json.dump(torch.cuda.memory._snapshot(), file)` writes: two blocks in a segment of 32 MiB."""
    blocks = [
        {"address": 1, "size": held + 512, "requested_size": held, "state": "active_allocated", "frames": []},
        {"address": 9, "size": 30 * MIB, "requested_size": 30 * MIB, "state": "inactive", "frames": []},
    ]
    segments = [{"device": 0, "address": 1, "total_size": 32 * MIB, "segment_pool_id": [0, 0], "blocks": blocks}]
    entries = [{"action": action, "addr": 1, "size": size, "stream": 0, "time_us": 5} for action, size in trace]
    path.write_text(json.dumps({"segments": segments, "device_traces": [[], entries], "allocator_settings": {}}))
    return path


def test_the_trace_is_walked_back_to_the_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = [
        ("segment_alloc", 16 * MIB), ("segment_alloc", 32 * MIB), ("alloc", 2 * MIB), ("alloc", 5 * MIB),
        ("free_requested", 5 * MIB), ("free_completed", 5 * MIB), ("alloc", 3 * MIB), ("oom", 1 << 40),
        ("free_requested", 3 * MIB), ("segment_free", 16 * MIB), ("snapshot", 0),
    ]  # fmt: skip
    path = snapshot(tmp_path / "rank1.json", trace)
    problem = Problem(described("gpt2"), None, 2, 8, target="any", space=Space(data=2, stages=1))
    write_plan(tmp_path / "plan.json", plan := make_plan(problem).plan)
    assert main(["simulate", str(tmp_path / "plan.json"), "--memory-snapshot", f"1={path}", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["memory_snapshots"]
    assert (row["rank"], row["peak_bytes"], row["end_bytes"], row["reserved_bytes"]) == (1, 7 * MIB, 2 * MIB, 48 * MIB)
    assert row["planned_peak_bytes"] == plan.prediction.peak_memory_bytes[1]
    assert row["planned_upper_bytes"] == plan.prediction.peak_memory_upper_bytes[1]
    assert 0 < row["planned_states_bytes"] < row["planned_peak_bytes"]


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("1", 2, "RANK=FILE"),
        ("x=1.json", 2, "RANK=FILE"),
        ("0=none.json", 3, "none.json"),
        ("0=empty.json", 3, "no 'segments'"),
        ("0=unrecorded.json", 3, "_record_memory_history"),
        ("0=pickle.json", 3, "pickle.json"),
        ("0=odd.json", 3, "/segments/0/blocks"),
        ("0=lacking.json", 3, "no 'blocks'"),
        ("99=good.json", 6, "the plan has ranks 0 to"),
    ],
)
def test_what_is_no_snapshot_of_the_plan_is_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    snapshot(Path("good.json"), [("alloc", MIB)])
    snapshot(Path("unrecorded.json"), [])
    Path("empty.json").write_text("{}")
    Path("pickle.json").write_bytes(b"\x80\x04}\x94.")
    Path("lacking.json").write_text('{"segments": [{}], "device_traces": [[{}]]}')
    Path("odd.json").write_text('{"segments": [{"blocks": 3}], "device_traces": [[{}]]}')
    assert main(["simulate", str(PLAN), "--memory-snapshot", given]) == code
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_snapshot_goes_with_a_plan_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--schedule", "1f1b", "--microbatches", "4", "--memory-snapshot", "0=a.json"]) == 2
    assert "goes with a plan file" in capsys.readouterr().err
