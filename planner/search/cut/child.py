"""Runs the solver's process and reads its findings until it ends, is killed, or its deadline has passed.

Whatever happens to the process, what it had found is kept. Leaves out what findings are worth.
"""

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from planner.search.cut.data import CutData
from planner.search.limits import Limits

GRACE_S = 2.0
"""The process is killed this long after its own limit, in case it does not keep it."""


@dataclass(frozen=True, slots=True)
class CutRequest:
    """What the process is asked for; the estimate takes `estimate_part` of the limits, the bound the rest."""

    data: CutData
    hint: tuple[int, ...]
    seconds: float
    deterministic: float
    estimate_part: float
    seed: int

    def to_json(self) -> str:
        """Return the JSON text."""
        body = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(body | {"data": self.data.to_json()})


def findings(request: CutRequest, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield the findings of the process (`planner.search.cut.solver`) as they come.

    The process never outlives the iterator, nor this process, however that ends. Each objective ends with an ``end``
    finding; when that of the bound is missing, the process was lost or stopped.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(  # this very interpreter and a module of ours
        [sys.executable, "-m", "planner.search.cut.solver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    try:
        yield from _read(process, request, limits)
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream:
                with suppress(BrokenPipeError):  # what a killed process did not read is flushed here
                    stream.close()
        process.wait()


def _read(process: "subprocess.Popen[bytes]", request: CutRequest, limits: Limits) -> Iterator[dict[str, Any]]:
    if process.stdin is None or process.stdout is None:
        return
    try:
        process.stdin.write(request.to_json().encode() + b"\n")
        process.stdin.flush()  # and it stays open: its end tells the process that this one is gone
    except BrokenPipeError:
        return
    descriptor = process.stdout.fileno()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not limits.over:
            if not selector.select(limits.left_s):
                continue
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)
