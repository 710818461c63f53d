"""The driver of the rare call on a GPU machine: what it would do is told, and what was measured comes back."""

import gzip
import json
import os
import subprocess
import sys
import tarfile
import time

import pytest

from benchmarks.gpu.call.__main__ import main
from benchmarks.gpu.call.agenda import Agenda
from benchmarks.gpu.call.owners import compared
from benchmarks.gpu.call.packing import pack
from benchmarks.gpu.call.parent import Call
from costmodel.profiling.measure.records import CALL, KERNELS, NOTE
from tests.support.repository import DATA, ROOT

TRACE = DATA / "h100_uno_trace.json.gz"
PREFIX = "penstock mark "
RANKS = {"ranks over gloo": 90, "ranks over nccl": 90}
NAMES = {"rows.json", "logs.tar.gz", "profiles.tar", "traces.tar", "files.tar.gz"}
MIB = 2**20


@pytest.mark.parametrize(
    ("words", "boxes"),
    [
        ("smoke 300 --models dlrm,mmt", {"machine": 40, "model mmt": 300, "model dlrm": 300}),
        (
            "main 520 --models uno",
            {"uno: captured": 90, "machine": 30, "uno: profile,whole": 45, "uno: kernels,one_stage": 25,
             "fingerprints": 45},
        ),
        (
            "main 520 --models uno --device cpu",
            {"uno: captured": 90, "machine": 120, "uno: profile,whole": 360, "uno: kernels,one_stage": 200,
             "fingerprints": 45},
        ),
    ],
)  # fmt: skip
def test_a_dry_run_prints_every_step_with_its_box_and_starts_nothing(words, boxes, tmp_path, capsys):
    main([*words.split(), "--dry-run", "--out", str(tmp_path / "out")])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert {line[:26].strip(): int(line[26:33]) for line in lines} == boxes
    assert all(line.endswith("?") and int(line[33:44]) <= int(line[26:33]) for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_without_chosen_models_each_is_asked_all_its_passes_the_largest_last_and_ranks_beside_them():
    labels = [step.label for step in Agenda("main", 520).steps()]
    assert [label for label in labels if label in RANKS] == [*RANKS]
    passes = [(name, pass_) for name, _, pass_ in (label.partition(": ") for label in labels) if pass_]
    counts = {name: sum(one == name for one, _ in passes) - 1 for name, _ in passes}
    assert counts == {"llama3": 3, "mmt": 3, "unet3d": 3, "dlrm": 2, "yolo": 2, "uno": 2, "moe": 1}
    assert (passes[-1], labels[-1]) == (("moe", "profile,whole"), "fingerprints")


def test_the_parent_needs_the_standard_library_alone():
    code = (
        "import sys\nbefore = {*sys.modules}\nimport benchmarks.gpu.call.__main__, benchmarks.gpu.call.errand\n"
        "print({name.partition('.')[0] for name in {*sys.modules} - before} - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("{'benchmarks'}", "")


STEP = f"""
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from benchmarks.gpu.call.errand import Errand
name, work, end = sys.argv[1:]
errand = Errand(name, Path(work))
errand.ask("first", lambda: [{{"figure": 1}}, {{"figure": 2}}])
errand.ask("second", lambda: 1 / 0)
if end:
    with open(Path(work, "rows", name + ".jsonl"), "a") as file:
        file.write('{{"question": "third", "ro')
    errand.tell("ready")
    exec(end)
"""


def test_a_step_that_is_killed_loses_none_of_its_rows_nor_of_others(tmp_path):
    out, work = tmp_path / "out", tmp_path / "work"
    call = Call(Agenda("smoke", 600), out, work)
    ends = {
        "machine": "",
        "ranks over gloo": "os.kill(os.getpid(), signal.SIGKILL)",
        "ranks over nccl": "time.sleep(600)",
    }
    children = [call.begin(name, "-c", STEP, name, str(work), end) for name, end in ends.items()]
    while not (work / "done" / "ranks over nccl.ready").exists():
        time.sleep(0.01)
    children[2].wait(0)
    call.wait_for(children)
    found = json.loads((out / "rows.json").read_text())
    assert [step["state"] for step in found["steps"]] == ["ok", "exit -9", "killed after 0 s"]
    rows = found["rows"]
    assert [row["row"] for row in rows if "row" in row] == [
        {"model": name, "figure": figure} for name in ends for figure in (1, 2)
    ]
    assert [(row["model"], row["error"]) for row in rows if "error" in row] == [
        (name, "ZeroDivisionError: division by zero") for name in ends
    ]
    with tarfile.open(out / "logs.tar.gz") as logs:
        assert sorted(logs.getnames()) == sorted(f"{name}.txt" for name in ends)


def test_a_call_whose_time_is_over_starts_nothing_says_so_and_packs_what_earlier_ones_left(tmp_path):
    (tmp_path / "h100-work-smoke" / "rows").mkdir(parents=True)
    row = {"question": "whole", "seconds": 1.0, "row": {"model": "mmt", "size": 8}}
    (tmp_path / "h100-work-smoke" / "rows" / "mmt.jsonl").write_text(json.dumps(row) + "\n")
    done = subprocess.run(
        ["bash", "benchmarks/gpu/call/h100_call.sh", ".", "smoke", "1", "cpu", "dlrm"],
        cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OUT": str(tmp_path / "out"), "PYTHON": sys.executable},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == "SMOKE NOT CLEAN: give the machine back, mend, then main"
    assert {"STEP machine: no time left", "STEP model dlrm: no time left"} <= {*lines}
    assert {path.name for path in (tmp_path / "out").iterdir()} == NAMES
    assert json.loads((tmp_path / "out" / "rows.json").read_text())["rows"] == [row]


def test_of_files_over_the_limit_the_largest_stay_behind_by_name_and_rows_are_compressed(tmp_path, capsys):
    work = tmp_path / "work"
    for name in ("rows", "traces"):
        (work / name).mkdir(parents=True)
    (work / "traces" / "large").write_bytes(os.urandom(16 * MIB))
    (work / "traces" / "small").write_bytes(os.urandom(MIB))
    pack(tmp_path / "out", work, {})
    (work / "rows" / "one.jsonl").write_text(json.dumps({"question": "long", "row": {"text": "a" * 16 * MIB}}) + "\n")
    pack(tmp_path / "out", work, {"plan": "main"})
    assert "large: 16 MiB do not come back" in capsys.readouterr().out
    with tarfile.open(tmp_path / "out" / "traces.tar") as traces:
        assert traces.getnames() == ["small"]
    files = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert {*files} == {*NAMES} - {"rows.json"} | {"rows.json.gz"}
    assert max(files.values()) < 16 * MIB
    found = json.loads(gzip.decompress((tmp_path / "out" / "rows.json.gz").read_bytes()))
    assert (found["plan"], len(found["rows"][0]["row"]["text"])) == ("main", 16 * MIB)


def test_kernels_of_a_recorded_step_have_one_owner_by_marks_and_links_and_one_that_has_not_counts():
    events = json.loads(gzip.decompress(TRACE.read_bytes()))
    notes = sum(event.get("cat") == NOTE and event["name"].startswith(PREFIX) for event in events)
    owners = {number: ("F", str(number)) for number in range(notes)}
    found = compared(events, PREFIX, owners, notes)
    assert (found["kernels"], found["unlinked_%"], found["before_launch"]) == (306, 0, 0)
    assert found["attribution_apart_%"] <= 0.1
    longest = max((event for event in events if event.get("cat") in KERNELS), key=lambda event: event["dur"])
    first = min((event for event in events if event.get("cat") == CALL), key=lambda event: event["ts"])
    longest["args"]["External id"] = first["args"]["External id"]
    moved = compared(events, PREFIX, owners, notes)
    share = 100 * longest["dur"] / (1e3 * found["kernel_ms"])
    assert moved["attribution_apart_%"] - found["attribution_apart_%"] == pytest.approx(share, abs=0.01)
