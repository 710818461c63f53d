"""What it costs that stages call the user's modules: a step beside the flat program's, a capture beside a plain one.

    python -m benchmarks.module_stages [--models M,...] [--rounds 12] [-o FILE.jsonl]

Each model is one stage, one thread, with and without its modules in turn; ratios are of medians taken in one run.
Marked are steps above 1.02 times the flat ones and captures above 1.3 times the plain ones, as aimed. Tiny models spend
their steps in Python, their own modules' too; that says little of larger ones. Leaves out devices other than the CPU.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.support.kept_rows import add_output, kept
from costmodel.capture.capture import Capture, capture
from costmodel.capture.models import load_model
from costmodel.capture.parts import Part, extract
from costmodel.model.graph import LOSS

MODELS = ("zoo:gpt:small", "zoo:mmt:small", "zoo:uno:small", "zoo:llama3:small", "zoo:t5:small", "zoo:resnet50:small")
STEP, CAPTURE = 1.02, 1.3


def rows(models: list[str], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each model."""
    for name in models:
        model = load_model(name)
        captured = capture(model)
        plain, noted = in_turn(max(3, rounds // 4), partial(without_notes, model), partial(capture, model))
        flat, own = (extract(captured, captured.operators, with_modules=chosen) for chosen in (False, True))
        flat_s, own_s = in_turn(rounds, partial(step, flat), partial(step, own))
        yield {
            "model": name, "capture_s": plain, "capture_ratio": noted / plain, "step_s": flat_s,
            "step_ratio": own_s / flat_s, "load": round(os.getloadavg()[0], 1),
        }  # fmt: skip


def in_turn(rounds: int, one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """Return the medians of two sides that take turns, s; the first round warms up."""
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(rounds + 1):
        for side, taken in zip((one, other), seconds, strict=True):
            start = time.perf_counter()
            side()
            taken.append(time.perf_counter() - start)
    return median(seconds[0][1:]), median(seconds[1][1:])


def without_notes(model: Any) -> Capture:
    """Capture a model without noting its calls."""

    @contextmanager
    def nothing(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(take=lambda graph: ())

    with patch("costmodel.capture.export.noting_calls", nothing):
        return capture(model)


def step(part: Part) -> None:
    """Run forward and backward of a whole model once."""
    model = part.capture.model
    model.module.zero_grad()
    part(part.capture.bind(model), model.targets)[LOSS].backward()  # type: ignore[no-untyped-call]


def main() -> int:
    """Print the table; exit 1 where a ratio is above what was aimed at."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=12)
    add_output(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    missed = 0
    print("model                 capture s   ratio    step ms   ratio  load")
    for row in kept(rows(args.models.split(","), args.rounds), args.output):
        above = row["step_ratio"] > STEP or row["capture_ratio"] > CAPTURE
        missed += above
        print(
            f"{row['model']:20} {row['capture_s']:10.2f} {row['capture_ratio']:7.2f} {1e3 * row['step_s']:10.1f} "
            f"{row['step_ratio']:7.3f} {row['load']:5.1f}{'  above' if above else ''}",
            flush=True,
        )
    print(f"{missed} models above what was aimed at")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
