"""The solver's process: started once, asked one cut problem after the other, its findings read as they come.

Whatever happens to the process, what it had found is kept, and the next request starts another. Leaves out what
findings are worth.
"""

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Self

from planner.search.budget import Deadline
from planner.search.solvers.relaxation.data import NO_SUMS, CutData, FarSums


@dataclass(frozen=True, slots=True)
class CutRequest:
    """What the process is asked for: the bound, and where it `estimates` that in an equal part of the limits."""

    data: CutData
    hint: tuple[int, ...]
    seconds: float
    deterministic: float
    estimates: bool
    seed: int

    def to_json(self) -> str:
        """Return the JSON text."""
        return _json(self)


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """What the process is asked for where every partition matters whose bound is at most `most` units.

    Those of `forbidden` are known, those that it told before for the same number of a `family` need not be named again;
    it reports those of up to `count` solves.
    """

    family: int
    data: CutData
    forbidden: tuple[tuple[int, ...], ...]
    most: int | None
    hint: tuple[int, ...]
    count: int
    seconds: float
    deterministic: float
    seed: int

    def to_json(self) -> str:
        """Return the JSON text."""
        return _json(self)


@dataclass(frozen=True, slots=True)
class LatticeRequest:
    """What the process is asked for where a family's bound is to rise, from `best_ns` down, until it is `until_ns`.

    What it knows of the same number of a `family` is gone on from; `work` counts pairs of downsets. With an `estimate`,
    that of a cut, the least estimate is sought and bounded instead; with a number of devices stages have replicas of
    their own number (`planner.search.solvers.lattice.replicas`), whose sums may be over a slow link.
    """

    family: int
    data: CutData
    best_ns: int
    until_ns: int
    seconds: float
    work: float
    estimate: tuple[int, ...] = ()
    num_devices: int = 0
    sharded: bool = False
    added: tuple[int, ...] = ()
    far: FarSums = NO_SUMS

    def to_json(self) -> str:
        """Return the JSON text."""
        return _json(self)


Request = CutRequest | ProofRequest | LatticeRequest


class Solver:
    """The process (`planner.search.solvers.cpsat.solver`); it never outlives the ``with`` block, nor this process.

    Attributes
    ----------
    busy : bool
        Whether it is at work on a request.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.busy, self._rest = False, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def pid(self) -> int | None:
        """The number of the process while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process, unless it runs: its imports take as long as many a cut problem."""
        if self._process is None:
            environment = os.environ | {
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                "OMP_NUM_THREADS": "1",
            }
            self._process = subprocess.Popen(  # this very interpreter and a module of ours
                [sys.executable, "-m", "planner.search.solvers.cpsat.solver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def findings(self, request: Request, limits: Deadline) -> Iterator[dict[str, Any]]:
        """Yield the findings of a request until it is done.

        Each objective ends with an ``end`` finding; when that of the bound is missing, the process was lost or stopped.
        """
        self.ask(request)
        try:
            while self.busy and not limits.expired:
                yield from self.received(limits.remaining_s)
        finally:
            if self.busy:  # it is still at work on what nobody waits for
                self._end()

    def ask(self, request: Request) -> None:
        """Send a request; `received` tells what comes of it."""
        self.start()
        process = self._process
        if process is None or process.stdin is None:
            return
        self.busy, self._rest = True, b""
        try:
            process.stdin.write(request.to_json().encode() + b"\n")
            process.stdin.flush()  # and it stays open: its end tells the process that this one is gone
        except BrokenPipeError:
            self._end()

    def received(self, wait_s: float) -> list[dict[str, Any]]:
        """Return the findings of a request, waiting up to `wait_s` for one; `busy` tells whether more may come."""
        process = self._process
        if not self.busy or process is None or process.stdout is None:
            return []
        descriptor = process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            if not selector.select(wait_s):
                return []
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            self._end()
            return []
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        found = [json.loads(line) for line in lines]
        if found and found[-1]["kind"] == "done":
            self.busy = False
            found.pop()
        return found

    def drop(self) -> None:
        """Give up what it is at work on, and what it knows."""
        self._end()

    def _end(self) -> None:
        self.busy = False
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream:
                with suppress(BrokenPipeError):  # what a killed process did not read is flushed here
                    stream.close()
        process.wait()


def _json(request: Request) -> str:
    body = {field.name: getattr(request, field.name) for field in fields(request)}
    return json.dumps(body | {"data": request.data.to_json()})
