"""The command line as a whole: each command's help has an example that runs, flags are frozen, shells complete them."""

import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from costmodel.model.profile import write_profile
from planner.commands import COMMANDS, completion, main, parser_of
from planner.plan import read_plan
from simulator.timeline import write_timeline
from tests.described_models import GPT2, described
from tests.frozen_options import GOLDEN, RENEW, options
from tests.measured_by_hand import measured_by_hand
from tests.test_importers import LAYERS, NCCL_TEXT, matrix, nvidia
from tests.test_kineto import trace
from tests.test_peers import GRAPH, PIPER

CLUSTER = """\
format = "penstock-cluster"
version = 1
[[device]]
name = "a100"
catalogue = "a100-sxm-80"
[[host]]
device = "a100"
devices = 2
count = 2
[[link]]
name = "nvlink"
group = 2
bandwidth_gbs = 240.0
latency_us = 6.0
[[link]]
name = "ib"
group = 0
bandwidth_gbs = 5.0
latency_us = 12.0
"""
COSTS = {"format": "penstock-costs", "version": 1,
         "stages": [{"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}] * 3}  # fmt: skip

PARSED_ONLY = {
    "penstock profile zoo:mmt:small -o profile.json": "measures for half a minute; tests/test_profiling_run.py does",
    "penstock import aceso aceso.tar.gz --device a10g --model 13B -o profile.json --cluster-output cluster.toml": (
        "the archive may not stand in the project; tests/test_aceso.py reads it where it is"
    ),
    "penstock links -o links.json --ranks 2": "measures for some ten seconds; tests/test_links_measure.py does",
}
"""Examples that are not run here, and why."""
SHORTER = {"plan": ["--time-limit", "1"], "explain": ["--time-limit", "1"]}
"""What is added to the examples of a command: a search takes all the time that it has."""


def examples() -> list[str]:
    """Commands in the help texts: indented lines; two spaces or more end them."""
    found = []
    for command in COMMANDS:
        lines = (parser_of(command).description or "").splitlines()
        found += [re.split(r"\s{2,}", line.strip())[0] for line in lines if line.startswith("    penstock ")]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the examples name, made in small."""
    home = tmp_path_factory.mktemp("examples")
    write_profile(home / "profile.json", described("gpt2", "a100-sxm-80"))
    write_profile(home / "llama.json", described("llama", "a100-sxm-80"))
    texts = {
        "cluster.toml": CLUSTER,
        "config.json": json.dumps(GPT2),
        "costs.json": json.dumps(COSTS),
        "schedule.csv": "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
        "orders.csv": "".join(",".join(f"{s}{k}{i}" for k in "FB" for i in range(8)) + "\n" for s in range(2)),
        "table.csv": LAYERS,
        "runs.csv": "model,device,devices,batch,step_time_ms\n"
        + "".join(f"config.json,a100-sxm-80,2,{n},{2.5 * n}\n" for n in (8, 16)),
        "bert32.json": json.dumps(PIPER),
        "graph.txt": GRAPH,
        "all_reduce.txt": NCCL_TEXT,
        "topo.txt": nvidia(matrix(2, lambda i, j: "NV12")),
    }
    texts |= {f"rank{rank}.json": json.dumps(trace(rank)) for rank in range(2)}
    for name, text in texts.items():
        (home / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert main(["fit", "runs.csv", "-o", "calibration.toml", "--json"]) == 0
        for name, flags in (("plan", "--schedule 1f1b"), ("old", "--schedule gpipe"), ("chain", "--planner chain")):
            line = f"plan profile.json --cluster cluster.toml --devices 4 --batch 16 --stages 4 {flags} --time-limit 0"
            assert main([*line.split(), "--json", "-o", f"{name}.json"]) == 0
    write_timeline(home / "timeline.json", measured_by_hand(read_plan(home / "plan.json")))
    return home


@pytest.mark.parametrize("line", examples())
def test_an_example_of_a_help_text_runs(
    line: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line.partition(" > ")[0])[1:]
    parser_of(words[0]).parse_args(words[1:])
    if line in PARSED_ONLY:
        return
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    assert main([*words, *SHORTER.get(words[0], [])]) == 0
    for flag, name in pairwise(words):
        if flag in ("-o", "--chart", "--html", "--trace"):
            assert Path(name).stat().st_size
    assert capsys.readouterr().out


def test_each_command_has_an_example_and_what_is_not_run_stands_in_a_help_text() -> None:
    held = {line.split()[1] for line in examples()}
    assert held == set(COMMANDS)
    assert set(PARSED_ONLY) <= set(examples())


def test_flags_are_as_they_were_frozen() -> None:
    """A flag that scripts use may not go, nor mean something else, by accident."""
    frozen, found = json.loads(GOLDEN.read_text()), options()
    unlike = {name for name in frozen.keys() | found if frozen.get(name) != found.get(name)}
    assert not unlike, f"flags of {', '.join(sorted(unlike))} changed; if that is meant: {RENEW}"


COMPLETED = """
source penstock.bash
complete -p penstock
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _penstock; echo "${COMPREPLY[*]}"; }
try penstock com
try penstock plan profile.json --tar
try penstock plan profile.json --target meg
try penstock completion ""
try penstock show plan
try penstock plan profile.json --pin ""
"""


def test_bash_completes_commands_flags_and_their_values_and_leaves_files_to_itself(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here: its completion is not tested")
    (tmp_path / "penstock.bash").write_text(script("bash"))
    done = subprocess.run([bash, "--norc", "-c", COMPLETED], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o default -F _penstock penstock",
        "compare completion",
        "--target",
        "megatron",
        "bash zsh fish",
        "",
        "",
    ]


@pytest.mark.parametrize(("shell", "check"), [("bash", ["-n"]), ("zsh", ["-n"]), ("fish", ["--no-execute"])])
def test_each_shell_reads_its_script(shell: str, check: list[str], tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here: its script is not read by it")
    (tmp_path / "script").write_text(script(shell))
    done = subprocess.run([program, *check, "script"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def script(shell: str) -> str:
    return str(completion.run(parser_of("completion").parse_args([shell])).json["script"])
