"""How good profiles are: zoo models (``:small``, CPU, one thread) against other measurements, one table a question.

    python -m benchmarks.profiler [--models NAME,NAME] [--only whole|memory|parts|limit] [--repeats 31] [--json FILE]

whole: operators, seconds of the capture, coverage (the share of the step attributed), the unscaled sum of
in-context times against the separate whole step, the scaled prediction against another run in another process.
memory: saved bytes against torch's MemTracker. parts, which decides the cuts: eight models cut at five random
places each, every part run alone against the profile's forward, backward and saved bytes. limit: times under a
memory limit of a quarter of the model's own state against unlimited ones. Profile and other run take turns of
fractions of a second on one core. Times want a quiet machine; bytes and coverage hardly do.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.profiler.checks import part_errors, profile_beside, stepper, tracked_bytes
from costmodel import zoo
from costmodel.capture.capture import capture
from costmodel.capture.clock import clock_for
from costmodel.capture.heap import keep_freed_memory
from costmodel.capture.models import load_model
from costmodel.profiling.measure.memory import counted_graph, saved_bytes
from costmodel.profiling.measure.piecewise import state_bytes
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile

NUM_CUTS = 5
MIDDLE, WORST = 0.08, 0.20
"""What the median and the worst error of parts may be."""

PARTS_MODELS = ("mmt", "gpt", "llama", "clip", "vit", "t5", "unet3d", "resnet50")
LIMIT_MODELS = ("gpt", "llama", "vit", "moe")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """Micro-batch size and timed rounds of every measurement."""

    batch: int
    repeats: int

    def options(self, name: str) -> Options:
        """Return what `name` is profiled with."""
        return Options(f"zoo:{name}:small", (self.batch,), repeats=self.repeats, links=False)


def whole(name: str, settings: Settings) -> Row:
    """Hold the whole step's times against a separate measurement and another run."""
    options, clock = settings.options(name), clock_for(torch.device("cpu"))
    model = load_model(options.model, settings.batch)
    start = time.perf_counter()
    captured = capture(model)
    capture_s = time.perf_counter() - start
    found, again_ns = profile_beside(options, stepper(captured, model, clock))
    unscaled: Any = found.extra["unscaled"]
    return {
        "operators": len(found.graph.operators),
        "capture_s": round(capture_s, 2),
        "coverage": unscaled["coverage"][0],
        "sum_error": round(unscaled["sum_ns"][0] / unscaled["step_ns"][0] - 1, 4),
        "prediction_error": round(found.whole.step_ns[0] / again_ns - 1, 4),
    }


def memory(name: str, settings: Settings) -> Row:
    """Hold saved bytes against torch's MemTracker."""
    options = settings.options(name)
    saved = saved_bytes(
        counted_graph(capture(load_model(options.model, settings.batch)), (settings.batch,)), settings.batch
    )
    tracked = tracked_bytes(load_model(options.model, settings.batch))
    return {"saved_bytes": saved, "tracked_bytes": tracked, "memory_error": round(saved / tracked - 1, 4)}


def parts(name: str, settings: Settings) -> Row:
    """Cut the model at random places and hold each part alone against the profile."""
    options, clock = settings.options(name), clock_for(torch.device("cpu"))
    model = load_model(options.model, settings.batch)
    found = profile(options)
    rows = part_errors(capture(model), model, found, clock, settings.repeats, NUM_CUTS, seed=0)
    errors: dict[str, list[tuple[float, float]]] = {"forward": [], "backward": [], "saved": []}
    for row in rows:
        for what, error in (("forward", row.forward), ("backward", row.backward), ("saved", row.saved)):
            if error is not None:
                errors[what].append((round(abs(error), 4), round(row.share, 4)))
    shown = {
        f"{what}_{word}": _rounded(of, [error for error, _ in each])
        for what, each in errors.items()
        for word, of in _MIDDLE_AND_WORST
    }
    return {"parts": len(rows), **shown, "errors": errors}


def limit(name: str, settings: Settings) -> Row:
    """Hold the step's time under a memory limit of a quarter of the model's state against the unlimited one."""
    free = settings.options(name)
    model = load_model(free.model, settings.batch)
    captured = capture(model)
    limit_bytes = state_bytes(counted_graph(captured, (settings.batch,)), settings.batch) // 4
    limited = replace(free, memory_limit_bytes=limit_bytes)
    step_ns = stepper(captured, model, clock_for(torch.device("cpu")))
    (whole, pace_then), (pieces, pace_now) = profile_beside(free, step_ns), profile_beside(limited, step_ns)
    blocks: Any = pieces.extra["in_blocks"]
    return {
        "limit_mib": round(limit_bytes / 2**20, 1),
        "blocks": blocks["blocks"],
        "distinct": blocks["distinct"],
        "limit_error": round(pieces.whole.step_ns[0] / pace_now / (whole.whole.step_ns[0] / pace_then) - 1, 4),
    }


def _worst(values: Sequence[float]) -> float:
    return max(values, default=0.0)


_MIDDLE_AND_WORST = (("median", median), ("worst", _worst))


def _rounded(of: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    return round(of(values), 4) if values else 0.0


@dataclass(frozen=True, slots=True)
class Table:
    """One question: what is measured of each model, on which models, and what must hold."""

    measure: Callable[[str, Settings], Row]
    models: Sequence[str]
    verdicts: Callable[[Sequence[Row]], list[tuple[str, bool]]]


def _most(bars: Mapping[str, Callable[[Row], bool]], rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """Each bar is kept by all models but an eighth of them (14 of 16)."""
    needed = len(rows) - len(rows) // 8
    counts = {bar: sum(map(holds, rows)) for bar, holds in bars.items()}
    return [
        (f"{bar}: {count} of {len(rows)} models, {needed} needed", count >= needed) for bar, count in counts.items()
    ]


def _spread(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """Forward, backward and saved bytes are judged apart: exact bytes must not hide wrong times."""
    found = []
    for what in ("forward", "backward", "saved"):
        pairs = [pair for row in rows for pair in row["errors"][what]]
        middle, worst = median(error for error, _ in pairs), max(error for error, _ in pairs)
        above = [share for error, share in pairs if error > WORST]
        which = f" ({len(above)} parts above it, at most {max(above):.1%} of the step)" if above else ""
        found.append(
            (f"{what}: median error of {len(pairs)} parts {middle:.1%}, at most {MIDDLE:.0%}", middle <= MIDDLE)
        )
        found.append((f"{what}: worst error {worst:.1%}, at most {WORST:.0%}{which}", worst <= WORST))
    return found


WHOLE_BARS: Mapping[str, Callable[[Row], bool]] = {
    "coverage at least 95 %": lambda row: bool(row["coverage"] >= 0.95),
    "unscaled sum within 8 %": lambda row: abs(row["sum_error"]) <= 0.08,
    "prediction of another run within 5 %": lambda row: abs(row["prediction_error"]) <= 0.05,
}

TABLES = {
    "whole": Table(whole, zoo.NAMES, partial(_most, WHOLE_BARS)),
    "memory": Table(
        memory, zoo.NAMES, partial(_most, {"memory within 6 %": lambda row: abs(row["memory_error"]) <= 0.06})
    ),
    "parts": Table(parts, PARTS_MODELS, _spread),
    "limit": Table(
        limit, LIMIT_MODELS, partial(_most, {"limited times within 8 %": lambda row: abs(row["limit_error"]) <= 0.08})
    ),
}


def run(name: str, models: Sequence[str], settings: Settings) -> dict[str, object]:
    """Measure one table, print each row when it is there and the verdicts below, and return all of it."""
    table = TABLES[name]
    rows: list[Row] = []
    print(f"\n{name}")
    for model in models or table.models:
        row = {"model": model, **table.measure(model, settings)}
        shown = {key: value for key, value in row.items() if key != "errors"}
        if not rows:
            print("  ".join(key.rjust(10) for key in shown))
        print("  ".join(str(value).rjust(max(10, len(key))) for key, value in shown.items()), flush=True)
        rows.append(row)
    verdicts = table.verdicts(rows)
    for sentence, holds in verdicts:
        print(f"{'kept  ' if holds else 'MISSED'}  {sentence}")
    return {"rows": rows, "verdicts": [{"sentence": sentence, "kept": holds} for sentence, holds in verdicts]}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiler", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--models", metavar="LIST", default="", help="names separated by commas; default: each table's")
    parser.add_argument("--only", choices=TABLES, help="one table")
    parser.add_argument("--batch", type=int, default=4, help="micro-batch size (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=31, help="timed rounds (default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    keep_freed_memory()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    models = [name for name in args.models.split(",") if name]
    if unknown := sorted(set(models) - set(zoo.NAMES)):
        parser.error(f"the zoo has no {', '.join(unknown)}; it has {', '.join(zoo.NAMES)}")
    settings = Settings(args.batch, args.repeats)
    found = {name: run(name, models, settings) for name in TABLES if args.only in (None, name)}
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
