"""`fit --judge` holds prices against rows, by groups, writes nothing and says which rows it leaves out, and why."""

import json
from pathlib import Path

import pytest

from planner.commands import main

HEADER = "model,device,devices,batch,sequence,precision,trainer,source,dispatcher,layers,step_time_ms\n"
ROWS = (
    "llama3-8b,h100-sxm-80,8,64,4096,bf16,torchtitan,one,,,4000",
    "llama3-8b,h100-sxm-80,8,64,2048,bf16,torchtitan,one,,,2000",
    "llama3-8b,h100-sxm-80,8,64,4096,bf16,megatron,two,allgather,equal,4000",
    "llama3-8b,h100-sxm-80,8,64,4096,bf16,megatron,two,deepep,,4000",
    "llama3-8b,no-such-device,8,64,4096,bf16,megatron,two,,,4000",
    "llama3-8b,h100-sxm-80,8,64,4096,int3,megatron,two,,,4000",
)
FIGURES = {"time_mape_percent", "median_percent", "bias_percent", "rank_correlation", "regret_percent",
           "interval_coverage_percent", "memory_mape_percent", "memory_upper_coverage_percent"}  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text(HEADER + "\n".join(ROWS) + "\n")
    return tmp_path


def test_rows_are_judged_by_groups_and_those_left_out_are_told(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "runs.csv", "--judge", "--by", "source,trainer", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["rows_priced"]) == (6, 3)
    assert [(one["row"]) for one in found["skipped"]] == [4, 5, 6]
    for one, said in zip(found["skipped"], ("dispatcher", "no-such-device", "int3"), strict=True):
        assert said in one["reason"]
    assert set(found["by"]) == {"one / torchtitan", "two / megatron"}
    assert found["by"]["one / torchtitan"].keys() >= FIGURES
    assert [path.name for path in runs.iterdir()] == ["runs.csv"]


@pytest.mark.parametrize(
    ("words", "said"), [("--judge --by colour", "colour"), ("--by source -o a.toml", "--judge"), ("", "-o")]
)
def test_what_cannot_be_meant_is_refused(runs: Path, capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    assert main(["fit", "runs.csv", *words.split()]) == 2
    assert said in capsys.readouterr().err
