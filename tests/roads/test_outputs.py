"""Where outputs go: nothing is lost that was there, nothing is half-written, and nothing stays of a killed write."""

import gzip
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from costmodel import limits
from costmodel.errors import InvalidInput, UsageError
from costmodel.files import read_json, write_json, write_text
from costmodel.outputs import check_outputs, place
from planner.commands import main
from planner.plan import write_plan
from tests.properties.failed_writes import write_failures
from tests.support.small_plan import PLAN

PENSTOCK = (sys.executable, "-m", "planner")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "plan.json").write_text("old")
    (tmp_path / "plan.json").symlink_to(tmp_path / "far" / "plan.json")
    write_text(tmp_path / "plan.json", "new")
    assert (tmp_path / "plan.json").is_symlink()
    assert (tmp_path / "far" / "plan.json").read_text() == "new"
    assert names(tmp_path / "far") == ["plan.json"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=place, args=(tmp_path / "pipe", b"through"))
    writer.start()
    assert (tmp_path / "pipe").read_bytes() == b"through"
    writer.join()
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_full_device_is_an_error_in_words_and_stays_a_device() -> None:
    with pytest.raises(InvalidInput, match="No space left"):
        place("/dev/full", b"x" * 100_000)
    place("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


HALF = """
import os, sys
from costmodel import outputs
os.fsync = lambda _: os.kill(os.getpid(), 9)
outputs.place(sys.argv[1], b"half")
"""


def test_what_a_killed_write_leaves_is_cleared_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "plan[1].json"  # a name that is a pattern, too
    target.write_text("old")
    subprocess.run([sys.executable, "-c", HALF, str(target)], check=False)
    assert target.read_text() == "old"
    assert len(names(tmp_path)) == 2
    write_text(target, "new")
    assert names(tmp_path) == ["plan[1].json"]
    assert target.read_text() == "new"


def test_a_writer_at_work_is_left_alone(tmp_path: Path) -> None:
    import fcntl

    other = tmp_path / ".plan.json.abc.tmp"
    with other.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_text(tmp_path / "plan.json", "new")
        assert other.exists()
    write_text(tmp_path / "plan.json", "newer")
    assert names(tmp_path) == ["plan.json"]


def test_a_file_of_another_kind_is_not_written_over(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", "penstock-plan", 1, {})
    write_json(tmp_path / "a.json", "penstock-plan", 1, {"extra": 1})
    with pytest.raises(UsageError, match="something else than a penstock-profile file"):
        write_json(tmp_path / "a.json", "penstock-profile", 1, {})
    (tmp_path / "model.py").write_text("def build(): ...")
    with pytest.raises(UsageError, match="something else"):
        write_json(tmp_path / "model.py", "penstock-plan", 1, {})
    assert (tmp_path / "model.py").read_text() == "def build(): ..."
    write_json(tmp_path / "b.json.gz", "penstock-plan", 1, {})
    write_json(tmp_path / "b.json.gz", "penstock-plan", 1, {"extra": 2})
    assert b'"extra": 2' in gzip.decompress((tmp_path / "b.json.gz").read_bytes())


def test_outputs_that_are_inputs_or_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text("x")
    (tmp_path / "link.json").symlink_to(tmp_path / "in.json")
    with pytest.raises(UsageError, match="which is read"):
        check_outputs([str(tmp_path / "link.json")], [str(tmp_path / "in.json")])
    with pytest.raises(UsageError, match="one file"):
        check_outputs([str(tmp_path / "a.svg"), str(tmp_path / "." / "a.svg")], [])
    check_outputs(["/dev/null", "/dev/null"], ["linear", str(tmp_path)])


def test_the_commands_refuse_before_they_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text("not read")
    plan = str(tmp_path / "plan.json")
    assert main(["plan", plan, "--devices", "1", "--batch", "1", "-o", plan]) == 2
    assert "which is read" in capsys.readouterr().err
    assert main(["plan", "no.json", "--devices", "1", "--batch", "1", "-o", plan]) == 2
    assert "something else" in capsys.readouterr().err
    assert (tmp_path / "plan.json").read_text() == "not read"


def test_a_pipe_is_no_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InvalidInput, match="no regular file"):
        read_json(tmp_path / "pipe.json")


def test_decompression_stops_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * 2**20))
    with limits.raised({"bytes": 2**16}), pytest.raises(UsageError, match="--limit bytes="):
        read_json(tmp_path / "bomb.json.gz")


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "--schedule", "1f1b", "--ranks", "N", "--microbatches", "N"),
        ("simulate", "--schedule", "seq1f1b", "--ranks", "2", "--microbatches", "2", "--slices", "N"),
        ("simulate", "--schedule", "zb-auto", "--ranks", "4", "--microbatches", "N"),
        ("schedules", "--ranks", "N", "--microbatches", "4"),
        ("model", "random:N:1", "-o", "x.json"),
        ("links", "--ranks", "N", "-o", "x.json"),
    ],
)
@pytest.mark.parametrize("number", [10**9, 2**63])
def test_what_is_too_large_is_refused_before_any_work(
    arguments: tuple[str, ...], number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part.replace("N", str(number)) if "N" in part else part for part in arguments]) == 2
    assert "--limit" in capsys.readouterr().err


def test_a_flag_raises_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["simulate", "--schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--json"]
    assert main([*small, "--limit", "actions=15"]) == 2
    assert main([*small, "--limit", "actions=16"]) == 0
    assert main([*small, "--limit", "actions=x"]) == 2
    assert main([*small, "--limit", "colours=3"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize("command", ["explain", "compare"])  # a line first, and a table first
def test_an_output_that_is_gone_or_full_ends_quietly(command: str, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", PLAN)
    show = (*PENSTOCK, command, str(tmp_path / "plan.json"))
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(show, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (found.returncode, found.stderr) == (
        3,
        "penstock: nothing more can be written to the output: no space is left\n",
    )
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        found = subprocess.run(show, stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert (found.returncode, found.stderr) == (141, "")
    closed = subprocess.run(f"{' '.join(show)} >&-", shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (141, "")


def test_a_disk_that_fills_up_or_a_place_that_takes_no_file_ends_a_command_with_all_files_whole() -> None:
    """All commands: ``python -m benchmarks.reliability --full --only failed-writes``."""
    assert write_failures(4) == []
