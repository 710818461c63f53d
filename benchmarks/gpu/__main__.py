"""All that issue "On a real GPU" shows, in one command; each question apart, an error in one hinders no other.

    python -m benchmarks.gpu [--device cuda|cpu] [--only QUESTION,...] [--models NAME,...] [--repeats 9] [-o FOLDER]
                             [--minutes 10]

Profiles go to FOLDER/profiles, figures to FOLDER/gpu-QUESTION.json. On a CPU every model is its small one: that shows
that the code runs, its figures say nothing. A profile that lies in the folder is used again, and so is what the same
command has measured on the same machine: it goes on where it was ended.
"""

import argparse
import contextlib
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.gpu import analytic, execution, memory, parts, profiles, whole
from benchmarks.gpu.setting import SUBJECTS, Row, Setting
from costmodel.capture.heap import keep_freed_memory
from costmodel.files import write_text
from costmodel.profiling.device import describe_device

QUESTIONS = {
    "profiles": profiles,
    "whole": whole,
    "parts": parts,
    "analytic": analytic,
    "execution": execution,
    "memory": memory,
}


def ask(
    name: str,
    question: ModuleType,
    setting: Setting,
    save: Callable[[dict[str, Any]], None] = lambda _: None,
    before: Mapping[str, Any] | None = None,
    end: float = math.inf,
) -> dict[str, Any]:
    """Measure one question, print and save each row when it is there, the verdicts below, and return all of it.

    What an earlier run has measured (`before`) stands; after `end` (of `time.perf_counter`) no measurement begins.
    """
    start = time.perf_counter()
    print(f"\n{name}", flush=True)
    known = before or {}
    rows: list[Row] = list(known.get("rows", ()))
    done: list[int] = list(known.get("done", ()))
    errors: list[str] = []
    complete, number = False, -1
    measures = iter(question.rows(setting))
    while time.perf_counter() < end:
        began, number = time.perf_counter(), number + 1
        try:
            measure = next(measures)
            if number in done:
                continue
            found = measure()
        except StopIteration:
            complete = True
            break
        except Exception as error:  # a row that fails is reported, and the rest goes on
            errors.append(f"{type(error).__name__}: {error}")
            print(f"FAILED  {errors[-1]}", flush=True)
            continue
        for row in found if isinstance(found, list) else [found]:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            rows.append(row)
        done.append(number)
        print(f"        {time.perf_counter() - began:.1f} s", flush=True)
        setting.free()
        save({"rows": [*rows], "done": [*done], "errors": errors, "complete": False})
    verdicts = [] if not rows else question.verdicts(rows)
    for sentence, kept in verdicts:
        print(f"{'kept  ' if kept else 'MISSED'}  {sentence}")
    seconds = round(time.perf_counter() - start + known.get("seconds", 0), 1)
    print(f"{name}: {seconds} s{'' if complete else '; the same command goes on from here'}", flush=True)
    judged = [{"sentence": sentence, "kept": kept} for sentence, kept in verdicts]
    found_all = {"rows": rows, "done": done, "verdicts": judged, "errors": errors}
    return {**found_all, "complete": complete and not errors, "seconds": seconds}


def circumstances(setting: Setting, argv: Sequence[str]) -> dict[str, Any]:
    """Return what the figures depend on: device, driver, versions, date, command and load."""
    device = describe_device(setting.device)
    return {
        "command": shlex.join(["python", "-m", "benchmarks.gpu", *argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device.name,
        "memory_bytes": device.memory_bytes,
        "driver": _driver() if setting.full else "",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    with contextlib.suppress(OSError):
        return path.read_text().splitlines()[0]
    return ""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", metavar="LIST", default="", help=f"of {', '.join(QUESTIONS)}; default all")
    parser.add_argument(
        "--models", metavar="LIST", default="", help=f"of {', '.join(SUBJECTS)}; default each question's"
    )
    parser.add_argument("--repeats", type=int, default=9, help="timed rounds (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no measurement after so long")
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, default=Path("out/gpu"))
    args = parser.parse_args(words)
    chosen, models = ([word for word in text.split(",") if word] for text in (args.only, args.models))
    if unknown := [*sorted({*chosen} - {*QUESTIONS}), *sorted({*models} - {*SUBJECTS})]:
        parser.error(f"unknown: {', '.join(unknown)}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; --device cpu runs the small models")
    torch.set_num_threads(1)
    keep_freed_memory()
    setting = Setting(torch.device(args.device), args.output, args.repeats, tuple(models))
    args.output.mkdir(parents=True, exist_ok=True)
    end = time.perf_counter() + 60 * args.minutes
    for name in chosen or QUESTIONS:
        path, now = args.output / f"gpu-{name}.json", circumstances(setting, words)
        before = _before(path, now)
        if before.get("complete"):
            print(f"\n{name}: complete in {path}, which the same command leaves; remove it to measure anew")
            continue
        save = partial(_save, path, now)
        save(ask(name, QUESTIONS[name], setting, save, before, end))


def _before(path: Path, now: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what was measured under the same circumstances."""
    if not path.exists():
        return {}
    found: Mapping[str, Any] = json.loads(path.read_text())
    alike = all(found.get(key) == now[key] for key in ("command", "device", "torch", "python"))
    return found if alike else {}


def _save(path: Path, circumstances: dict[str, Any], found: dict[str, Any]) -> None:
    """Write what was found, if anything was: a run that has measured nothing takes no other's figures."""
    if found["rows"] or found["errors"] or not path.exists():
        write_text(path, json.dumps({**circumstances, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
