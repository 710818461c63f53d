"""Mutated files, and odd numbers on command lines, end in an answer or in an error of ours (`benchmarks.fuzz`)."""

from pathlib import Path
from random import Random

import pytest

from benchmarks.fuzz import alarm, judge, readers
from costmodel.errors import PenstockError
from tests.support.example_files import write_examples
from tests.support.fuzzed_fields import READ_BY, altered
from tests.support.fuzzed_flags import LINES, command_lines, load, outcome
from tests.support.fuzzed_readers import ACESO, NCCL_TEXT

NUM_MUTANTS = 150
NUM_LINES = 4
NUM_FIELDS = 2
HANGS_S = 120
"""No machine is that slow: what a reader may take is held by the command, on a quiet one."""
READERS = readers()


@pytest.mark.parametrize("name", READERS)
def test_whole_files_are_read(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    for text in reader.texts:
        for other, beside in reader.beside.items():
            (tmp_path / other).write_text(beside)
        path = tmp_path / f"whole{reader.suffix}"
        path.write_text(text)
        reader.read(path)


@pytest.mark.parametrize("name", READERS)
def test_mutants_are_read_or_refused_by_name(name: str) -> None:
    found = judge(name, READERS[name], NUM_MUTANTS, seed=1, most_s=HANGS_S)
    assert not found.failures
    assert found.num_read
    assert found.num_refused


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lines")
    write_examples(folder)
    load()
    return folder


FLAGS_FAILED_ONCE = (
    f"show plan.json --limit=bytes={2**63}",
    f"show plan.json --limit=bytes={'9' * 5000}",
    "plan profile.json --devices 2 --batch 4 --time-limit=1e9",
    "plan profile.json --devices 2 --batch 4 --memory-limit=1e308",
    f"plan profile.json --devices 2 --batch 4 --loss-bytes={2**63}",
    "schedules --ranks 4 --microbatches 8 --slices=1000000",
    "schedules --ranks 4 --microbatches 8 --memory-limit=1e308",
    "simulate --schedule 1f1b --ranks 4 --microbatches 8 --w-memory-fraction=1e-320",
    "whatif plan.json --jitter 5% --scenarios=1000000",
    "whatif plan.json --jitter 5% --seed=-1",
    f"whatif plan.json --set rank.{'9' * 5000}.speed=2",
    f"model random:100:{'9' * 5000} -o model.json",
)


@pytest.mark.parametrize("line", FLAGS_FAILED_ONCE)
def test_flags_that_once_ended_in_a_bug_of_ours_end_in_an_answer_or_an_error_of_ours(line: str, home: Path) -> None:
    assert outcome(line.split(), home, HANGS_S) in ("read", "refused")


@pytest.mark.parametrize("command", LINES)
def test_odd_and_enormous_numbers_on_a_command_line_are_answered_or_refused(command: str, home: Path) -> None:
    assert outcome(LINES[command].split(), home, HANGS_S) == ("refused" if command == "links" else "read")
    lines = [words for words in command_lines() if words[0] == command]
    for words in Random(command).sample(lines, min(len(lines), NUM_LINES)):
        assert outcome(words, home, HANGS_S) in ("read", "refused"), words[-1]


@pytest.mark.parametrize("name", READ_BY)
def test_enormous_numbers_in_files_are_answered_or_refused_by_what_reads_them(name: str, home: Path) -> None:
    """All of them: ``python -m benchmarks.fuzz --fields``."""
    assert [line for line in READ_BY[name] if outcome(line.split(), home, HANGS_S) != "read"] == []
    whole = (home / name).read_text()
    cases = list(altered(name, whole))
    for what, text in Random(name).sample(cases, min(len(cases), NUM_FIELDS)):
        (home / name).write_text(text)
        for line in READ_BY[name]:
            assert outcome(line.split(), home, HANGS_S) in ("read", "refused"), (line, what)
    (home / name).write_text(whole)


FAILED_ONCE = {
    "runs with more cells than columns": ("runs", "model,device\ngpt,a,b\n"),
    "runs of a digit that is no decimal": (
        "runs", "model,device,devices,batch,step_time_ms\nllama3-8b,h100-sxm-80,²,8,1\n",
    ),
    "a step beyond all time": (
        "runs", "model,device,devices,batch,step_time_ms\nllama3-8b,h100-sxm-80,8,8,1e308\n",
    ),
    "a host list of 5,000 digits": ("topology", f"SwitchName=s0 Nodes=n[0-{'9' * 5000}]\n"),
    "layers without number": ("config", '{"model_type": "llama", "num_hidden_layers": 9223372036854775807}'),
    "heads wider than the model": ("config", '{"model_type": "qwen2_vl", "vision_config": {"num_heads": 1000000}}'),
    "a transfer of 400 digits": ("nccl-tests", NCCL_TEXT.replace("        1024  ", f"  {'9' * 400}  ")),
    "no in-place time either": (
        "nccl-tests",
        '{"args": ["x/all_reduce_perf"], "config": {"devices": [{"device_info": "G"}]}, "results": [{"size": 1}]}',
    ),
    "a program of a long name": (
        "nccl-tests", f'{{"args": ["{"a" * 300_000}"], "config": {{"devices": []}}, "results": []}}',
    ),
    "a device without a name": (
        "nccl-tests", '{"args": ["x/all_reduce_perf"], "config": {"devices": [{}]}, "results": []}',
    ),
    "a links file of no name": (
        "cluster", 'format = "penstock-cluster"\nversion = 1\nlinks = "a\\u0000b"\ndevice = []\nhost = []\n',
    ),
    "endless layers": ("aceso", ACESO.replace('"num_layers": 2', '"num_layers": 1e999')),
    "a billion layers": ("aceso", ACESO.replace('"num_layers": 2', '"num_layers": 1000000000')),
    "one size of messages twice": ("aceso", ACESO.replace("1,16,64", "1,64,64")),
    "messages that never end": ("aceso", ACESO.replace("\n1,2,2\n", "\n1,2,1e-320\n")),
    "small messages alone": ("aceso", ACESO.replace("1,16,64", "1,2,3")),
}  # fmt: skip
"""What once ended in an error of Python's, or took the machine's memory, or minutes."""


@pytest.mark.parametrize("case", FAILED_ONCE)
def test_what_failed_once_is_refused(case: str, tmp_path: Path) -> None:
    name, text = FAILED_ONCE[case]
    path = tmp_path / f"mutant{READERS[name].suffix}"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PenstockError), alarm(HANGS_S):
        READERS[name].read(path)
