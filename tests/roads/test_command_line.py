"""The command line as a whole: each command's help has an example that runs, flags are frozen, shells complete them."""

import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from planner.commands import COMMANDS, completion, main, parser_of
from tests.support.example_files import write_examples
from tests.support.frozen_options import FROZEN, RENEW, options

PARSED_ONLY = {
    "penstock profile zoo:mmt:small -o profile.json": "measures for half a minute; `test_profiling_run.py` does",
    "penstock links -o links.json --ranks 2": "measures for some ten seconds; `test_links_measure.py` does",
    "penstock model my_module:build -o profile.json": "takes a module of the user's; `test_model_captured.py` has some",
}
"""Examples that are not run here, and why."""
SHORTER = {
    "plan": ["--time-limit", "0.2"],
    "book": ["--time-limit", "0.5"],
    "explain": ["--time-limit", "1"],
    "ablation": ["--time-limit", "0.2"],
    "buy": ["--time-limit", "0.3", "--batch-tokens", "128K"],
}
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
    """Return a folder with the files that the examples name."""
    home = tmp_path_factory.mktemp("examples")
    write_examples(home)
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


REFUSED = "--devices 2 --batch 8 --microbatch-size 2"
FORMS = (
    ("schedules --ranks 2 --microbatches 4", "simulate --schedule all --ranks 2 --microbatches 4"),
    ("show plan.json", "explain --summary plan.json"),
    (f"ablation profile.json {REFUSED}", f"whatif profile.json --means {REFUSED}"),
    ("calibrate plan.json --measured timeline.json", "fit plan.json --measured timeline.json"),
    ("completion bash", "doctor --completion bash"),
)  # fmt: skip


@pytest.mark.parametrize(("old", "new"), FORMS)
def test_a_form_of_a_command_answers_what_the_old_name_does(
    old: str, new: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    answers = []
    for line in (old, new):
        code = main([*line.split(), "--json"])
        answers.append((code, json.loads(capsys.readouterr().out)))
    assert answers[0] == answers[1]


def test_compare_of_two_plans_of_one_model_says_what_diff_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    answers = {}
    for command in ("compare", "diff"):
        assert main([command, "plan.json", "chain.json", "--json"]) == 0
        answers[command] = json.loads(capsys.readouterr().out)
    assert answers["compare"]["diff"] == {k: v for k, v in answers["diff"].items() if k != "plans"}


def test_the_help_of_all_lists_no_name_that_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert not set(listed) & {"schedules", "diff", "show", "ablation", "calibrate", "completion"}


def test_flags_are_as_they_were_frozen() -> None:
    """A flag that scripts use may not go, nor mean something else, by accident."""
    frozen, found = json.loads(FROZEN.read_text()), options()
    unlike = {name for name in frozen.keys() | found if frozen.get(name) != found.get(name)}
    assert not unlike, f"flags of {', '.join(sorted(unlike))} changed; if that is meant: {RENEW}"


COMPLETED = """
source penstock.bash
complete -p penstock
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_penstock; echo "${COMPREPLY[*]}"; }
try penstock com
try penstock plan profile.json --tar
try penstock plan profile.json --target meg
try penstock completion ""
touch plan.json
try penstock show plan
try penstock plan profile.json --pin pl
"""


def test_bash_completes_commands_flags_their_values_and_files(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here: its completion is not tested")
    (tmp_path / "penstock.bash").write_text(script("bash"))
    done = subprocess.run([bash, "--norc", "-c", COMPLETED], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o bashdefault -F _shtab_penstock penstock",
        "compare completion",
        "--target",
        "megatron",
        "bash zsh fish",
        "plan.json",
        "plan.json",
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
