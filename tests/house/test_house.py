"""The house: what may be imported where, that the wheel works, and that the command starts light."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

from tests.support.repository import ROOT

HEAVY = ("numpy", "pandas", "torch", "ortools", "matplotlib", "numba", "rich", "networkx", "shtab")


def python(code: str, *, cwd: Path = ROOT, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)


def torch_needs() -> set[str]:
    """Import names of torch and of what it requires, its requirements' requirements included."""
    found: set[str] = set()
    waiting = ["torch"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        for line in lines:
            if "extra ==" not in line:
                word = "".join(c if c.isalnum() or c in "-_." else " " for c in line).split()[0]
                waiting.append(word.lower())
    spelled = {name.replace("-", "_") for name in found}
    owned = packages_distributions().items()
    return {name for name, owners in owned if {o.lower().replace("-", "_") for o in owners} & spelled}


BLOCKER = """
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and top not in sys.stdlib_module_names and not top.startswith("_"):
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.parametrize(
    "paths",
    [
        "planner.commands planner.commands.validate planner.checker planner.plan",
        "planner.commands.profile costmodel.profiling.command costmodel.profiling.run",
        "planner.commands.links costmodel.profiling.links",
        "executor executor.__main__ executor.run executor.pipeline",
        "simulator.actions simulator.schedule simulator.timeline simulator.lowering simulator.validation",
    ],
)
def test_gpu_box_paths_import_with_torch_and_the_standard_library_alone(paths: str) -> None:
    allowed = torch_needs() | {"costmodel", "simulator", "planner", "executor"}
    imports = f"import importlib\nfor name in {paths.split()!r}: importlib.import_module(name)"
    code = f"ALLOWED = {allowed!r}\n{BLOCKER}\n{imports}"
    done = python(code)
    assert done.returncode == 0, done.stderr[-2000:]


def test_help_imports_no_library() -> None:
    code = (
        "import sys\nfrom planner.commands import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = python(code)
    assert done.stderr.strip() == "[]"
    assert "profile" in done.stdout


def test_the_wheel_installs_and_penstock_runs_outside_the_checkout(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.glob("penstock-*.whl")
    install = [*pip, "install", "--no-deps", "--no-compile", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = "import sys, planner\nprint(planner.__file__)\nfrom planner.commands import main\nmain(['--help'])"
    done = python(code, cwd=tmp_path, path=site)
    assert done.stdout.startswith(str(site))
    assert "penstock COMMAND" in done.stdout
    assert (site / "bin" / "penstock").exists()
    schemas = {path.name for path in (site / "costmodel" / "schemas").glob("*.json")}
    assert {"plan.schema.json", "profile.schema.json"} <= schemas
    assert {"page.css", "page.js"} <= {path.name for path in (site / "planner" / "report" / "html").iterdir()}


def test_an_error_under_json_is_one_object_on_stdout() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planner", "simulate", "--json", "--schedule", "nonsense"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit"]) == (2, 2)
    assert "--microbatches" in answer["error"]


def test_an_unknown_command_names_the_commands() -> None:
    done = subprocess.run([sys.executable, "-m", "planner", "frobnicate"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "profile, links, model, plan" in done.stderr
    assert "Traceback" not in done.stderr
