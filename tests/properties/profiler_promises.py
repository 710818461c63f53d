"""What the profiler promises when it is cut off at any moment: resumed, it measured each item once and none less."""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

MODEL = "tests.support.training_models:two_branch"
FLAGS = ("--microbatch-sizes", "1,2,4", "--repeats", "3", "--companions", "0", "--no-links", "--tensor", "2")
KEPT = "kept.journal"
"""A second name of the journal, which outlives the command."""


def interruption_failures(num_cases: int) -> list[str]:
    """Interrupt so many profilings, each once to three times, and resume them; return what then differs.

    A process that has done nothing but import torch starts the profilers, which spares each the imports.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as nursery:
        return nursery.submit(_failures, num_cases).result()


def _failures(num_cases: int) -> list[str]:
    import torch

    from costmodel.profiling import run  # noqa: F401 - the profilers inherit it

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        undisturbed = Path(name)
        begin = time.monotonic()
        _profile(undisturbed, signal.SIGINT, None)
        seconds = time.monotonic() - begin
        return [f"case {i}: {line}" for i in range(num_cases) for line in _problems(i, undisturbed, seconds)]


def _problems(case: int, undisturbed: Path, seconds: float) -> list[str]:
    rng = Random(case)
    with tempfile.TemporaryDirectory() as name:
        folder, problems = Path(name), []
        for _ in range(rng.randint(1, 3)):
            how = rng.choice((signal.SIGINT, signal.SIGKILL))
            before = _lines(folder / "p.json.journal")
            code = _profile(folder, how, seconds * rng.random())
            after = _lines(folder / "p.json.journal")
            if code not in (0, 130 if how == signal.SIGINT else -how):
                problems.append(f"{how.name} ended it with {code}: {(folder / 'err').read_text()[-300:]}")
            if code and after[: len(before)] != before:
                problems.append(f"{how.name} changed what was measured before")
        code = _profile(folder, signal.SIGINT, None)
        if code:
            return [*problems, f"resumed, it ended with {code}: {(folder / 'err').read_text()[-300:]}"]
        return problems + _differences(folder, undisturbed)


def _profile(folder: Path, how: signal.Signals, after_s: float | None) -> int:
    """Run the command, stop it after so many seconds if any, and return its exit code."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    process = context.Process(target=_command, args=(folder, begun))
    process.start()
    begun.wait()
    if after_s is not None:
        process.join(after_s)
        if process.is_alive():
            os.kill(process.pid or 0, how)
    process.join()
    return int(process.exitcode or 0)


def _command(folder: Path, begun: Any) -> None:
    from planner.commands import main

    code = 130
    sys.stdout = sys.stderr = (folder / "err").open("w", buffering=1)
    try:
        begun.set()
        journal, kept = folder / "p.json.journal", folder / KEPT
        if journal.exists() and not kept.exists():
            kept.hardlink_to(journal)
        code = main(["profile", MODEL, "-o", str(folder / "p.json"), *FLAGS])
    except KeyboardInterrupt:  # before or after the command's own work
        pass
    os._exit(code)


def _differences(folder: Path, undisturbed: Path) -> list[str]:
    """Compare a resumed profiling with an undisturbed one: what the profile knows, and what the journal held."""
    problems = []
    if _known(folder) != _known(undisturbed):
        problems.append("the profile does not know the same as an undisturbed one")
    if (folder / "p.json.journal").exists():
        problems.append("the journal was left behind")
    keys = [json.dumps(line[0]) for line in _lines(folder / KEPT)[1:]]
    if len(set(keys)) != len(keys):
        problems.append(f"measured twice: {sorted(key for key in keys if keys.count(key) > 1)}")
    return problems


def _known(folder: Path) -> object:
    """Return a profile with every measured number replaced by a mark: its keys, names and the lists' lengths."""
    body = json.loads((folder / "p.json").read_text())
    return {key: body[key] if key in ("model", "tensors", "microbatch_sizes") else _keys(body[key]) for key in body}


def _keys(value: Any) -> object:
    if isinstance(value, dict):
        return {key: _keys(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_keys(item) for item in value]
    return value if isinstance(value, str) else "number"


def _lines(path: Path) -> list[Any]:
    """Return what the whole lines of a journal hold; a kill may have left half of one."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line)[2] for line in text[: text.rfind("\n") + 1].splitlines()]
