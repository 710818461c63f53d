"""`plan --layers` cuts a model into whole layers as trainers do, so that `plan` and `fit` price one job alike."""

import json
from pathlib import Path

import pytest

from planner.commands import main
from planner.measured.predicted import Predictor
from planner.measured.runs import read_runs

HEADER = "model,device,devices,batch,microbatch_size,sequence,stages,data,schedule,layers,step_time_ms\n"


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    shape = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 6,
             "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000, "max_position_embeddings": 2048,
             "tie_word_embeddings": False}  # fmt: skip
    Path("config.json").write_text(json.dumps(shape))
    assert main(["model", "config.json", "-o", "p.json", "--sequence", "1024", "--device", "a100-sxm-80"]) == 0
    return "p.json"


@pytest.mark.parametrize(("stages", "layers"), [(2, "equal"), (4, "equal"), (2, "2,4"), (3, "1,4,1")])
def test_a_job_cut_in_whole_layers_is_priced_alike_by_plan_and_by_fit(profile: str, stages: int, layers: str) -> None:
    words = f"--devices {stages} --batch 8 --microbatch-size 1 --stages {stages} --chunks 1 --data 1 --tensor 1"
    words += " --context 1 --zero 0 --recompute none --offload none --schedule 1f1b --deterministic-limit 0"
    assert main(["plan", profile, *words.split(), "--layers", layers, "-o", "plan.json"]) == 0
    row = f'config.json,a100-sxm-80,{stages},8,1,1024,{stages},1,1f1b,"{layers}",1\n'
    Path("runs.csv").write_text(HEADER + row)
    (found,) = Predictor().all(read_runs("runs.csv"))
    assert json.loads(Path("plan.json").read_text())["prediction"]["step_time_ns"] == found.step_ns


@pytest.mark.parametrize(
    ("words", "said"),
    [("--layers equal", "give --stages"), ("--layers 2,3 --stages 2", "6 in all"), ("--layers two", "whole numbers")],
)
def test_layers_that_no_stages_have_are_refused_with_the_way_out(
    profile: str, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert main(["plan", profile, "--devices", "2", "--batch", "8", "-o", "plan.json", *words.split()]) == 2
    assert said in capsys.readouterr().err
    assert not Path("plan.json").exists()
