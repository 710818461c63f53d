"""The process that solves cut problems: a JSON line each on stdin, one JSON line a finding on stdout.

First the bound is minimised, for the proof and for partitions to simulate, then, where few micro-batches
may be in flight, the estimate, for more of these. It runs apart from the planner, so that whatever happens
here costs no more than this search: a crash of the solver, a deadline, an interrupt. Everything is seeded
and limited in deterministic time.
"""

import json
import os
import signal
import sys
import threading
from queue import SimpleQueue
from typing import Any, TextIO

from ortools.sat.python import cp_model

from planner.search.cut.constraints import Constraints
from planner.search.cut.data import CutData
from planner.search.cut.objectives import bound, estimate
from planner.search.cut.variables import Variables

OBJECTIVES = {"estimate": estimate, "bound": bound}
NUM_WORKERS = 4
ALONE_PART = 0.7
"""Part of the limits for one worker alone."""
LEAST_STEP = 1e-4
"""Relative rise of the bound that is worth a message."""


class CutModel:
    """A model with one objective."""

    def __init__(self, data: CutData, objective: str) -> None:
        self.data, self.objective = data, objective
        self.model = cp_model.CpModel()
        self.at = Variables(self.model, data)
        Constraints(self.model, data, self.at).state()
        self.goal = OBJECTIVES[objective](self.model, data, self.at)
        self.model.minimize(self.goal)

    def hint(self, partition: tuple[int, ...]) -> bool:
        """Hint every variable: those that a partition implies are solved for with the cut fixed."""
        fixed = self.model.clone()
        shift = self.data.num_stages - 1 - max(partition)
        for atom, row in enumerate(self.at.inside):
            fixed.add(fixed.get_int_var_from_proto_index(row[partition[atom] + shift].index) == 1)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = 5.0
        solver.parameters.catch_sigint_signal = False
        if solver.solve(fixed) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return False
        self._hint_all(solver)
        return True

    def _hint_all(self, solver: cp_model.CpSolver) -> None:
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for index, value in enumerate(solver.response_proto.solution):
            self.model.add_hint(self.model.get_int_var_from_proto_index(index), value)

    def solve(self, request: dict[str, Any], part: float, found: "Findings", *, alone: bool) -> bool:
        """Minimise within a part of the request's limits, reporting every better partition and bound.

        One worker alone, without linear relaxation, proves small and middling cases several times sooner; several
        different ones get further on large cases. Returns whether something was left to find.
        """
        solver = cp_model.CpSolver()
        settings = solver.parameters
        if alone:
            settings.num_workers, settings.linearization_level = 1, 0
        else:
            settings.num_workers, settings.interleave_search = NUM_WORKERS, True
            settings.interleave_batch_size = 1  # in turn: what is reported must not depend on which worker is quicker
        settings.catch_sigint_signal = False
        settings.random_seed = request["seed"]
        settings.max_deterministic_time = request["deterministic"] * part
        settings.max_time_in_seconds = request["seconds"] * part
        if self.objective == "bound":
            solver.best_bound_callback = found.bound
        status = solver.solve(self.model, _Better(self, found))
        found.end(self.objective, solver, status)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self._hint_all(solver)
            if solver.best_objective_bound > 0:
                self.model.add(self.goal >= _whole(solver.best_objective_bound))
        return status in (cp_model.FEASIBLE, cp_model.UNKNOWN)


class Findings:
    """Writes findings, one JSON object a line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.proved = 0

    def write(self, **body: Any) -> None:
        """Write one finding."""
        self.stream.write(json.dumps(body) + "\n")
        self.stream.flush()

    def bound(self, value: float) -> None:
        """Write a proved bound, in the solver's units, unless it hardly moved."""
        units = _whole(value)
        if units > self.proved * (1 + LEAST_STEP):
            self.proved = units
            self.write(kind="bound", units=units)

    def end(self, objective: str, solver: cp_model.CpSolver, status: Any) -> None:
        """Write how a solve ended, with its last bound."""
        if objective == "bound" and status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.write(kind="bound", units=_whole(solver.best_objective_bound))
        self.write(
            kind="end",
            objective=objective,
            status=solver.status_name(status),
            deterministic=solver.response_proto.deterministic_time,
        )


class _Better(cp_model.CpSolverSolutionCallback):
    """Reports every improving partition."""

    def __init__(self, cut: CutModel, found: Findings) -> None:
        super().__init__()
        self.cut, self.found = cut, found

    def on_solution_callback(self) -> None:
        inside = self.cut.at.inside
        stages = [next(s for s, literal in enumerate(row) if self.boolean_value(literal)) for row in inside]
        partition = [stage - min(stages) for stage in stages]
        self.found.write(kind="partition", partition=partition, objective=self.cut.objective)


def _whole(value: float) -> int:
    """Round a bound that the solver proves for whole numbers; it reports it as a float."""
    return -int(-value // 1) if abs(value - round(value)) > 1e-6 else round(value)


def serve(request: dict[str, Any], found: Findings) -> None:
    """Solve one request: both objectives in turn, each with its part of the limits."""
    data = CutData.from_json(request["data"])
    hint = tuple(request["hint"])
    for objective, part in (("bound", 1 - request["estimate_part"]), ("estimate", request["estimate_part"])):
        if part > 0:
            cut = CutModel(data, objective)
            if hint:
                cut.hint(hint)
            if cut.solve(request, part * ALONE_PART, found, alone=True):
                cut.solve(request, part * (1 - ALONE_PART), found, alone=False)


def main() -> None:
    """Serve requests as long as the planner lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the planner hears Ctrl-C and ends this process
    requests: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        found = Findings(sys.stdout)
        serve(json.loads(requests.get()), found)
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
