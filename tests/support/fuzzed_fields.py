"""Every numeric field of the files that commands read, one at a time at an enormous value.

Of a JSON list that repeats, the fields of its first entry stand for all. Leaves out what the values do together, and
odd ones (`benchmarks.fuzz` mutates files by chance).
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.fuzzed_flags import LINES
from tests.support.schema_corpus import places

READ_BY: Mapping[str, tuple[str, ...]] = {
    "profile.json": (LINES["plan"], LINES["explain"], LINES["calibrate"]),
    "cluster.toml": (LINES["plan"],),
    "plan.json": (
        *(LINES[name] for name in ("validate", "show", "compare", "diff", "export", "whatif", "explain", "calibrate")),
        "simulate plan.json",
        "explain plan.json",
    ),
    "config.json": (LINES["model"],),
    "costs.json": ("simulate --schedule 1f1b --costs costs.json --microbatches 8",),
    "timeline.json": (LINES["calibrate"],),
    "calibration.toml": ("model config.json -o model.json --calibration calibration.toml",),
    "runs.csv": (LINES["fit"],),
    "table.csv": (LINES["import"],),
    "schedule.csv": ("simulate --schedule schedule.csv --microbatches 2",),
    "orders.csv": ("import torch-csv orders.csv --profile profile.json -o imported.json",),
    "rank0.json": ("import kineto rank0.json rank1.json -o traced.json --timeline-output traced.timeline.json",),
    "all_reduce.txt": ("import nccl-tests all_reduce.txt -o measured.links.json",),
    "topo.txt": ("import topology topo.txt -o imported.toml",),
}
"""File of the examples -> command lines that read it."""
ENORMOUS = (10**6, 10**9, 2**63)
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def altered(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield what was put where, and the file with it."""
    for value in ENORMOUS:
        if name.endswith(".json"):
            yield from ((f"{where} = {value}", new) for where, new in _json(json.loads(text), value))
        else:
            for found in NUMBER.finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                yield f"line {line}: {value} for {found[0]}", text[: found.start()] + str(value) + text[found.end() :]


def _json(document: Any, value: int) -> Iterator[tuple[str, str]]:
    known = set()
    for pointer, old in list(places(document)):
        kind = tuple(0 if isinstance(key, int) else key for key in pointer)
        if isinstance(old, bool) or not isinstance(old, int | float) or kind in known:
            continue
        known.add(kind)
        parent = document
        for key in pointer[:-1]:
            parent = parent[key]
        parent[pointer[-1]] = value
        yield "/".join(map(str, pointer)), json.dumps(document)
        parent[pointer[-1]] = old


def readings(home: Path, name: str) -> Iterator[tuple[str, list[str]]]:
    """Put each altered file in its place in turn, and yield what it is and each command line that reads it."""
    path = home / name
    whole = path.read_text()
    for what, text in altered(name, whole):
        for line in READ_BY[name]:
            path.write_text(text)
            yield what, line.split()
    path.write_text(whole)
