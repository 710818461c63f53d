"""Question `profiles`: every model profiled at three micro-batch sizes, and how long that takes.

The profiles are what the other questions hold against runs, and what ``costmodel/zoo/profiles/`` ships.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu.setting import SUBJECTS, Row, Setting, Subject, Verdict
from costmodel.model.profile import Profile

MODELS = tuple(SUBJECTS)


def rows(setting: Setting) -> Iterator[Callable[[], Row]]:
    """Yield what measures each row."""
    for subject in setting.chosen(MODELS):
        yield lambda subject=subject: _row(setting, subject)  # type: ignore[misc]


def _row(setting: Setting, subject: Subject) -> Row:
    setting.profile_path(subject).unlink(missing_ok=True)
    start = time.perf_counter()
    found = setting.profile(subject)
    return {"model": subject.name, "seconds": round(time.perf_counter() - start, 1), **described(found)}


def described(found: Profile) -> Row:
    """Return what a profile says as a whole."""
    unscaled: Any = found.extra["unscaled"]
    return {
        "dtype": found.dtype,
        "sizes": list(found.microbatch_sizes),
        "operators": len(found.graph.operators),
        "step_ms": [round(ns / 1e6, 2) for ns in found.whole.step_ns],
        "coverage": unscaled["coverage"],
        "catalogue": found.device.catalogue,
    }


def verdicts(found: list[Row]) -> list[Verdict]:
    """Say whether each profile has its three sizes."""
    whole = sum(len(row["sizes"]) == 3 for row in found)
    return [(f"three micro-batch sizes fit the device: {whole} of {len(found)} models", whole == len(found))]
