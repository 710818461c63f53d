"""`penstock model`: what it answers, what it needs, how a plan from it is marked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from costmodel.model.profile import read_profile
from planner.commands import main


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_answer_holds_operators_parameters_and_operations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "model", "deepseek-v3", "-o", str(tmp_path / "p.json"), "--sequence", "1024")
    assert (found["parameters"], found["active_parameters"]) == (671_026_419_200, 37_552_297_472)
    profile = read_profile(tmp_path / "p.json")
    assert found["operators"] == len(profile.graph.operators)
    assert found["flop"] == sum(operator.flop for operator in profile.graph.operators)
    assert profile.device.catalogue == "h100-sxm-80"


@pytest.mark.parametrize("name", ["random:30:1", "nasnet"])
def test_generated_graphs_have_the_same_command(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "model", name, "-o", str(tmp_path / "p.json"))
    assert found["operators"] == len(read_profile(tmp_path / "p.json").graph.operators)


def test_a_plan_from_estimates_says_so_and_lists_no_executor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 128, "n_head": 4, "vocab_size": 256}))
    answer(capsys, "model", str(config), "-o", str(tmp_path / "p.json"), "--sequence", "64")
    found = answer(capsys, "plan", str(tmp_path / "p.json"), "--devices", "2", "--batch", "4", "-o",
                   str(tmp_path / "plan.json"), "--planner", "uniform")  # fmt: skip
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert "the profile's times are roofline estimates" in plan["assumptions"]["estimated"]
    assert "executor" not in found["runs_on"]


def test_describing_a_model_needs_the_standard_library_alone(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom planner.commands import main\n"
        f"main(['model', 'llama3-8b', '-o', {str(tmp_path / 'p.json')!r}, '--sequence', '128', '--json'])\n"
        "print([m for m in ('torch', 'numpy', 'pandas', 'ortools') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_a_zoo_model_is_captured_without_values_and_priced_by_operations_and_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    found = answer(capsys, "model", "zoo:uno:small", "-o", str(tmp_path / "p.json"), "--microbatch-sizes", "2")
    profile = read_profile(tmp_path / "p.json")
    assert found["parameters"] == sum(p.size_bytes for p in profile.graph.parameters) // 2
    pairs = zip(profile.graph.operators, profile.times, strict=True)
    assert all((times.forward_ns[0] > 0) for operator, times in pairs if operator.flop)
    assert profile.origin.plan_only == ""


def test_a_zoo_model_without_torch_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["model", "zoo:gpt", "-o", str(tmp_path / "p.json")]) == 2
    assert "needs torch: install penstock[torch], or take an id of the table (llama3-8b" in capsys.readouterr().err
