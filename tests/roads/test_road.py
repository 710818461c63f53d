"""The whole road by its commands, for a model that is not in the zoo, and what goes wrong on it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from planner.commands import main
from tests.support.repository import ROOT

MODELS = ROOT / "tests" / "models"


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(MODELS)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


class Done(NamedTuple):
    returncode: int
    stderr: str


@pytest.fixture
def command(road: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command in this process, in the road's folder."""
    monkeypatch.chdir(road)
    monkeypatch.syspath_prepend(str(MODELS))

    def ended(*words: object) -> Done:
        capsys.readouterr()
        return Done(main(list(map(str, words))), capsys.readouterr().err)

    return ended


def answer(*words: object, cwd: Path) -> dict[str, Any]:
    done = run(*words, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile and a plan of a model of our own."""
    folder = tmp_path_factory.mktemp("road")
    sizes = ("--microbatch-sizes", "2,4", "--repeats", 1)
    answer("planner", "profile", "late_input:build", "-o", "profile.json", *sizes, cwd=folder)
    flags = ("--devices", 3, "--batch", 16, "--microbatch-size", 4, "-o", "plan.json", "--deterministic-limit", 0.01)
    answer("planner", "plan", "profile.json", *flags, cwd=folder)
    return folder


def test_a_model_of_ones_own_is_profiled_planned_validated_and_run(road: Path) -> None:
    checked = answer("planner", "validate", "plan.json", "--model", "late_input:build", cwd=road)
    assert checked == {"ok": True, "problems": [], "not_checked": []}
    plan = json.loads((road / "plan.json").read_text())
    ranks = len(plan["ranks"])
    launch = ("torch.distributed.run", "--nproc-per-node", ranks, "-m", "executor", "plan.json")
    result = answer(*launch, "--model", "late_input:build", "--steps", 3, "--check", cwd=road)
    assert result["max_gradient_error"] <= 1e-5
    assert result["loss_error"] <= 1e-6


def test_the_simulated_plan_is_what_the_plan_predicts(road: Path) -> None:
    plan = json.loads((road / "plan.json").read_text())
    simulated = answer("planner", "simulate", "plan.json", cwd=road)
    assert simulated["step_time_ns"] == plan["prediction"]["step_time_ns"] == plan["search"]["objective"]
    assert simulated["peak_memory_bytes"] == plan["prediction"]["peak_memory_bytes"]
    assert plan["search"]["lower_bound_ns"] <= plan["search"]["objective"]


def test_planning_never_imports_torch(road: Path) -> None:
    code = (
        "import sys\nfrom planner.commands import main\n"
        "flags = '--devices 2 --batch 8 -o other.json --deterministic-limit 0.01 --json'.split()\n"
        "code = main(['plan', 'profile.json', *flags])\n"
        "assert code == 0 and 'torch' not in sys.modules, [code, 'torch' in sys.modules]"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=road, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def broken(folder: Path, name: str, change: Any) -> Path:
    """A copy of the profile with something wrong in it."""
    profile = json.loads((folder / "profile.json").read_text())
    change(profile)
    path = folder / name
    path.write_text(json.dumps(profile))
    return path


def back_edge(profile: dict[str, Any]) -> None:
    first, last = profile["operators"][0]["name"], profile["operators"][-2]["name"]
    profile["tensors"].append({"name": "back", "producer": last, "consumers": [first], "bytes": [4, 8]})


def own_reader(profile: dict[str, Any]) -> None:
    profile["tensors"][0]["consumers"].append(profile["tensors"][0]["producer"])


def unknown_operator(profile: dict[str, Any]) -> None:
    profile["tensors"][0]["consumers"] = ["no_such_operator"]


def not_a_number(profile: dict[str, Any]) -> None:
    profile["operators"][0]["forward_ns"] = [float("nan"), 1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (back_edge, "cycle"),
        (own_reader, "reads its own output"),
        (unknown_operator, "no_such_operator"),
        (not_a_number, "NaN"),
    ],
)
def test_a_wrong_profile_is_one_clear_error(road: Path, command: Callable[..., Done], change: Any, says: str) -> None:
    path = broken(road, f"{says}.json", change)
    done = command("plan", path, "--devices", 2, "--batch", 8, "-o", "never.json")
    assert done.returncode == 3
    assert says in done.stderr
    assert path.name in done.stderr
    assert "Traceback" not in done.stderr
    assert not (road / "never.json").exists()


def test_a_duplicate_key_is_one_clear_error(road: Path, command: Callable[..., Done]) -> None:
    text = (road / "profile.json").read_text().replace('"dtype"', '"dtype": "x", "dtype"', 1)
    (road / "twice.json").write_text(text)
    done = command("plan", "twice.json", "--devices", 2, "--batch", 8, "-o", "never.json")
    assert (done.returncode, "'dtype' occurs twice" in done.stderr) == (3, True)


def test_too_little_memory_exits_4_and_says_by_how_much(command: Callable[..., Done]) -> None:
    flags = ("--devices", 2, "--batch", 8, "-o", "never.json", "--memory-limit", "0.00001")
    done = command("plan", "profile.json", *flags, "--time-limit", 60, "--deterministic-limit", 0)
    assert done.returncode == 4, done.stderr
    assert "bytes" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_for_another_model_exits_6(command: Callable[..., Done]) -> None:
    done = command("validate", "plan.json", "--model", "tied:build")
    assert done.returncode == 6, done.stderr
    assert "fingerprint" in done.stderr


def test_parameters_shared_by_stages_are_summed_also_where_links_cost_nothing(
    road: Path, command: Callable[..., Done]
) -> None:
    quick = ("--microbatch-sizes", 2, "--repeats", 1, "--companions", 0, "--no-links")
    assert command("profile", "tied:build", "-o", "tied.json", *quick).returncode == 0
    flags = ("--devices", 3, "--batch", 8, "--planner", "uniform", "-o", "tied.plan.json")
    assert command("plan", "tied.json", *flags).returncode == 0
    plan = json.loads((road / "tied.plan.json").read_text())
    assert sum("REDUCE" in action for rank in plan["ranks"] for action in rank["actions"]) >= 2


@pytest.mark.parametrize(("function", "says"), [("forward_fails", "inside the model"), ("loss_fails", "no such key")])
def test_an_error_of_the_users_model_is_not_called_ours(command: Callable[..., Done], function: str, says: str) -> None:
    done = command("profile", f"tied:{function}", "-o", "never.json", "--microbatch-sizes", 2)
    assert done.returncode == 3, done.stderr
    assert says in done.stderr
    assert "tied.py" in done.stderr
    assert "Traceback" not in done.stderr
