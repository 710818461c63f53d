"""The process that solves cut problems: a JSON line each on stdin, one JSON line a finding on stdout.

First the bound is minimised, for the proof and for partitions to simulate, then, where few micro-batches
may be in flight, the estimate, for more of these; or partitions are told one after the other (`proof`). It runs apart
from the planner, so that whatever happens here costs no more than this search: a crash of the solver, a deadline, an
interrupt. Everything is seeded and limited in deterministic time.
"""

import json
import os
import signal
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from planner.search.solvers.cpsat.model import CutModel, Findings
from planner.search.solvers.cpsat.proof import Proof
from planner.search.solvers.relaxation.data import CutData, FarSums

if TYPE_CHECKING:
    from planner.search.solvers.lattice.rising import BoundSession

MOST_LATTICES = 4
"""Lattices that are kept."""


def serve(request: dict[str, Any], found: Findings) -> None:
    """Solve one request: each objective by one worker alone, then by several, in equal parts of the limits."""
    data = CutData.from_json(request["data"])
    hint = tuple(request["hint"])
    objectives = ("bound", "estimate") if request["estimates"] else ("bound",)
    for objective in objectives:
        cut, part = CutModel(data, objective), 1 / (2 * len(objectives))
        if hint:
            cut.hint(hint)
        if cut.solve(request, part, found, alone=True):
            cut.solve(request, part, found, alone=False)


class Server:
    """Answers requests; it keeps the proof and the lattices that it was asked for last: they are often asked again."""

    def __init__(self) -> None:
        self._proof: Proof | None = None
        self._risings: dict[tuple[int, bool], BoundSession] = {}

    def serve(self, request: dict[str, Any], found: Findings) -> None:
        """Answer one request."""
        if "until_ns" in request:
            self._rise(request, found)
        elif "forbidden" in request:
            self._prove(request, found)
        else:
            serve(request, found)

    def _prove(self, request: dict[str, Any], found: Findings) -> None:
        if self._proof is None or self._proof.family != request["family"]:
            self._proof = Proof(request["family"], request["data"])
        self._proof.tell(request, found)

    def _rise(self, request: dict[str, Any], found: Findings) -> None:
        """Raise the bound of a family; what is known of the last few is kept."""
        from planner.search.solvers.lattice.bound import LatticeBound  # its kernels take a third of a second to import
        from planner.search.solvers.lattice.replicas import ReplicasBound
        from planner.search.solvers.lattice.rising import BoundSession

        data, estimate = CutData.from_json(request["data"]), bool(request["estimate"])
        key = request["family"], estimate
        rising = self._risings.pop(key, None)
        if rising is None and request["num_devices"]:
            asked = request["num_devices"], request["added"], FarSums(*request["far"])
            rising = BoundSession(data, ReplicasBound(data, *asked, sharded=request["sharded"]), estimate=False)
        elif rising is None:
            bound, step = LatticeBound(data, estimate=estimate), self._risings.get((request["family"], False))
            if estimate and step and isinstance(step.bound, LatticeBound):
                bound.begin_with(step.bound)
            rising = BoundSession(data, bound, estimate=estimate)
        self._risings[key] = rising
        if len(self._risings) > MOST_LATTICES:
            self._risings.pop(next(iter(self._risings)))
        rising.tell(request, found)


def main() -> None:
    """Serve requests as long as the planner lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the planner hears Ctrl-C and ends this process
    requests: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    server = Server()
    while True:
        found = Findings(sys.stdout)
        server.serve(json.loads(requests.get()), found)
        found.write(kind="done")


def _listen(requests: "SimpleQueue[str]") -> None:
    """Pass requests on; end with stdin, which the planner keeps open as long as it lives."""
    rest = b""
    while chunk := os.read(sys.stdin.fileno(), 1 << 16):  # not through the buffer, whose lock Python wants at its end
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            requests.put(line.decode())
    os._exit(0)


if __name__ == "__main__":
    main()
