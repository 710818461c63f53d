"""The cut model with one objective, what it is asked for, and what it reports: one JSON object a line.

Everything is seeded and limited in deterministic time. Leaves out who asks (`planner.search.solvers.cpsat.solver`).
"""

import json
from typing import Any, TextIO

from ortools.sat.python import cp_model

from planner.search.solvers.cpsat.constraints import Constraints
from planner.search.solvers.cpsat.objectives import bound, estimate
from planner.search.solvers.cpsat.variables import Variables
from planner.search.solvers.relaxation.data import CutData

OBJECTIVES = {"estimate": estimate, "bound": bound}
NUM_WORKERS = 4
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
        self.told: list[tuple[int, ...]] = []
        """Every partition that was reported."""

    def hint(self, partition: tuple[int, ...]) -> bool:
        """Hint every variable: those that a partition implies are solved for with the cut fixed."""
        fixed = self.model.clone()
        for literal in self.literals(partition):
            fixed.add(fixed.get_int_var_from_proto_index(literal.index) == 1)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = 5.0
        solver.parameters.catch_sigint_signal = False
        if solver.solve(fixed) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return False
        self.hint_all(solver)
        return True

    def literals(self, partition: tuple[int, ...]) -> list[cp_model.IntVar]:
        """Return the literals that are all true for a partition alone: fewer stages are the last numbers."""
        shift = self.data.num_stages - 1 - max(partition)
        return [row[stage + shift] for row, stage in zip(self.at.inside, partition, strict=True)]

    def is_above(self, units: int, limits: tuple[float, float, int]) -> tuple[bool, float]:
        """Return whether the objective is proved to be above a number of units, and the deterministic seconds used.

        A proof that nothing is so good, with a linear relaxation, is found much sooner than what is best. What is as
        good is hinted to the next call.
        """
        asked = self.model.clone()
        asked.clear_objective()  # type: ignore[no-untyped-call]
        asked.add(asked.get_int_var_from_proto_index(self.goal.index) <= units)
        solver = cp_model.CpSolver()
        settings = solver.parameters
        settings.num_workers, settings.linearization_level, settings.catch_sigint_signal = 1, 2, False
        settings.max_time_in_seconds, settings.max_deterministic_time, settings.random_seed = limits
        status = solver.solve(asked)
        if status == cp_model.INFEASIBLE:
            self.model.add(self.goal > units)
        elif status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.hint_all(solver)
        return status == cp_model.INFEASIBLE, solver.response_proto.deterministic_time

    def hint_all(self, solver: cp_model.CpSolver) -> None:
        """Hint the values of a solution."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for index, value in enumerate(solver.response_proto.solution):
            self.model.add_hint(self.model.get_int_var_from_proto_index(index), value)

    def solve(self, request: dict[str, Any], part: float, found: "Findings", *, alone: bool) -> bool:
        """Minimise within a part of the request's limits; returns whether something was left to find.

        One worker alone, without linear relaxation, proves small and middling cases several times sooner; several
        different ones get further on large cases.
        """
        limits = (request["seconds"] * part, request["deterministic"] * part, request["seed"])
        solver, status = self.minimise(limits, found, workers=1 if alone else NUM_WORKERS, linear=0)
        found.end(self.objective, solver, status, solver.response_proto.deterministic_time)
        return status in (cp_model.FEASIBLE, cp_model.UNKNOWN)

    def minimise(
        self, limits: tuple[float, float, int], found: "Findings", *, workers: int, linear: int
    ) -> tuple[cp_model.CpSolver, Any]:
        """Minimise within seconds and deterministic seconds, with a seed, reporting every better partition and bound.

        `linear` is the level of the linear relaxation of one worker alone. What was found is hinted to the next call,
        and its bound kept.
        """
        solver = cp_model.CpSolver()
        settings = solver.parameters
        settings.num_workers = workers
        if workers == 1:
            settings.linearization_level = linear
        else:
            settings.interleave_search = True
            settings.interleave_batch_size = 1  # in turn: what is reported must not depend on which worker is quicker
        settings.catch_sigint_signal = False
        settings.max_time_in_seconds, settings.max_deterministic_time, settings.random_seed = limits
        if self.objective == "bound":
            solver.best_bound_callback = found.bound
        status = solver.solve(self.model, _Better(self, found))
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.hint_all(solver)
            if solver.best_objective_bound > 0:
                self.model.add(self.goal >= whole(solver.best_objective_bound))
        return solver, status


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
        units = whole(value)
        if units > self.proved * (1 + LEAST_STEP):
            self.proved = units
            self.write(kind="bound", units=units)

    def end(self, objective: str, solver: cp_model.CpSolver, status: Any, spent: float) -> None:
        """Write how solves ended, with the last bound and the deterministic seconds that they took."""
        if objective == "bound" and status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.write(kind="bound", units=whole(solver.best_objective_bound))
        self.write(kind="end", objective=objective, status=solver.status_name(status), deterministic=spent)


class _Better(cp_model.CpSolverSolutionCallback):
    """Reports every improving partition."""

    def __init__(self, cut: CutModel, found: Findings) -> None:
        super().__init__()
        self.cut, self.found = cut, found

    def on_solution_callback(self) -> None:
        inside = self.cut.at.inside
        stages = [next(s for s, literal in enumerate(row) if self.boolean_value(literal)) for row in inside]
        partition = tuple(stage - min(stages) for stage in stages)
        self.cut.told.append(partition)
        self.found.write(kind="partition", partition=partition, objective=self.cut.objective)


def whole(value: float) -> int:
    """Round a bound that the solver proves for whole numbers; it reports it as a float."""
    return -int(-value // 1) if abs(value - round(value)) > 1e-6 else round(value)
