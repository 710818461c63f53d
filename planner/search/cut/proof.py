"""All partitions of a cut problem that matter, each told once: what a proof by simulation needs.

First the one of least bound is told, then any other whose bound is at most `most`. What was told, or the planner knows,
is forbidden from then on (a no-good); when no partition is left, that is proved. Leaves out what simulations say of
them (`planner.search.exact`).
"""

import time
from collections.abc import Iterable
from typing import Any

from ortools.sat.python import cp_model

from planner.search.cut.data import CutData
from planner.search.cut.model import CutModel, Findings

LINEAR = 2
"""How much of the model is relaxed to a linear one: with the whole time of each message that is what proves."""


class Proof:
    """The cut problem of a family with the partitions that are forbidden; other families may have the same problem."""

    def __init__(self, family: int, data: str) -> None:
        self.family = family
        self.cut = CutModel(CutData.from_json(data), "bound")
        self._forbidden: set[tuple[int, ...]] = set()

    def tell(self, request: dict[str, Any], found: Findings) -> None:
        """Report partitions that are not forbidden, from up to `count` solves; INFEASIBLE when there is none left."""
        self._forbid(map(tuple, request["forbidden"]))
        if request["most"] is not None:
            self.cut.model.add(self.cut.goal <= request["most"])
        if request["hint"]:
            self.cut.hint(tuple(request["hint"]))
        end, spent = time.monotonic() + request["seconds"], 0.0
        for _ in range(request["count"]):
            limits = (max(0.0, end - time.monotonic()), max(0.0, request["deterministic"] - spent), request["seed"])
            solver, status = self.cut.minimise(limits, found, workers=1, linear=LINEAR)
            spent += solver.response_proto.deterministic_time
            self._forbid(self.cut.told)
            if status != cp_model.OPTIMAL:
                break
            self.cut.model.clear_objective()  # type: ignore[no-untyped-call]
        found.end("bound", solver, status, spent)

    def _forbid(self, partitions: Iterable[tuple[int, ...]]) -> None:
        """Forbid each of these from now on."""
        for partition in partitions:
            if partition not in self._forbidden:
                self._forbidden.add(partition)
                self.cut.model.add_bool_or([literal.negated() for literal in self.cut.literals(partition)])
