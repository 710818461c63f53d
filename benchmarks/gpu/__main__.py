"""All that issue "On a real GPU" shows, in one command; each question apart, an error in one hinders no other.

    python -m benchmarks.gpu [--device cuda|cpu] [--only QUESTION,...] [--models NAME,...] [--repeats 9] [-o FOLDER]

Profiles go to FOLDER/profiles, figures to FOLDER/gpu-QUESTION.json. On a CPU every model is its small one: that shows
that the code runs, its figures say nothing. A profile that lies in the folder is used again.
"""

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.gpu import analytic, execution, memory, parts, profiles, whole
from benchmarks.gpu.setting import SUBJECTS, Row, Setting
from costmodel.capture.heap import keep_freed_memory
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
    name: str, question: ModuleType, setting: Setting, save: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """Measure one question, print and save each row when it is there, the verdicts below, and return all of it."""
    start = time.perf_counter()
    print(f"\n{name}", flush=True)
    rows: list[Row] = []
    errors: list[str] = []
    measures = iter(question.rows(setting))
    while True:
        began = time.perf_counter()
        try:
            measure = next(measures)
            found = measure()
        except StopIteration:
            break
        except Exception as error:  # a row that fails is reported, and the rest goes on
            errors.append(f"{type(error).__name__}: {error}")
            print(f"FAILED  {errors[-1]}", flush=True)
            continue
        for row in found if isinstance(found, list) else [found]:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            rows.append(row)
        print(f"        {time.perf_counter() - began:.1f} s", flush=True)
        setting.free()
        save({"rows": rows, "errors": errors})
    verdicts = [] if not rows else question.verdicts(rows)
    for sentence, kept in verdicts:
        print(f"{'kept  ' if kept else 'MISSED'}  {sentence}")
    seconds = round(time.perf_counter() - start, 1)
    print(f"{name}: {seconds} s", flush=True)
    judged = [{"sentence": sentence, "kept": kept} for sentence, kept in verdicts]
    return {"rows": rows, "verdicts": judged, "errors": errors, "seconds": seconds}


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
    for name in chosen or QUESTIONS:
        save = partial(_save, args.output / f"gpu-{name}.json", circumstances(setting, words))
        save(ask(name, QUESTIONS[name], setting, save))


def _save(path: Path, circumstances: dict[str, Any], found: dict[str, Any]) -> None:
    path.write_text(json.dumps({**circumstances, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
