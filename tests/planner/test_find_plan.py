"""A plan that a trainer finds by itself is sought once: by model, machines and choices, whoever asks together."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import UsageError
from planner import Effort, Space, find_plan
from tests.support.described_models import LLAMA
from tests.support.repository import ROOT

QUICK = Effort(time_limit_s=0.0)


def said(_: str) -> None:
    """Take what is said for nobody."""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "small.json"
    path.write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    return str(path)


def test_the_second_call_reads_what_the_first_one_found(config: str, tmp_path: Path) -> None:
    told: list[str] = []
    first = find_plan(config, 2, 8, folder=tmp_path / "kept", say=told.append, effort=QUICK)
    second = find_plan(config, 2, 8, folder=tmp_path / "kept", say=told.append, effort=QUICK)
    assert second == first
    assert "the ladder" in told[0]
    assert told[1].endswith("found by an earlier run")


def test_other_machines_or_choices_are_another_question(config: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"num_devices": 2, "global_batch": 8, "effort": QUICK, "folder": tmp_path, "say": said}
    changes: tuple[dict[str, Any], ...] = (
        {}, {"num_devices": 1}, {"global_batch": 16}, {"device": "a100-sxm-80"}, {"space": Space(zero=3)},
    )  # fmt: skip
    for changed in changes:
        find_plan(config, **{**asked, **changed})
    assert len(list(tmp_path.glob("*.plan.json"))) == len(changes)


def test_ranks_that_ask_together_get_one_plan(config: str, tmp_path: Path) -> None:
    code = (
        "import sys; from planner import find_plan, Effort\n"
        "find_plan(sys.argv[1], 2, 8, folder=sys.argv[2], effort=Effort(0.0))"
    )
    command = [sys.executable, "-c", code, config, str(tmp_path / "kept")]
    ranks = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = sorted(rank.communicate()[1].splitlines()[-1].startswith("plan ") for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert told == [False, True], "one plans and prints its ladder, the other reads"
    assert len(list((tmp_path / "kept").glob("*.plan.json"))) == 1


def test_a_measured_model_is_measured_once(tmp_path: Path) -> None:
    for _ in range(2):
        find_plan("tests.support.trainers.tower:build", 1, 8, device="cpu", folder=tmp_path, say=said, effort=QUICK)
    assert [len(list(tmp_path.glob(f"*.{kind}.json"))) for kind in ("plan", "profile")] == [1, 1]


def test_a_folder_that_cannot_be_written_is_refused_by_name(config: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="name another folder"):
        find_plan(config, 2, 8, folder=tmp_path / "file")
