"""All partitions of a cut problem that matter, the least bound first, each told once: what a proof by simulation needs.

A partition that was told, or that the planner knows, is forbidden from then on (a no-good); one whose bound is above
`most` is none that matters. When no partition is left, that is proved. Leaves out what simulations say of them
(`planner.search.bounders.proof`).
"""

import time
from collections.abc import Iterable
from typing import Any

from ortools.sat.python import cp_model

from planner.search.solvers.cpsat.model import CutModel, Findings, whole
from planner.search.solvers.relaxation.data import CutData

NAMES = {cp_model.OPTIMAL: "OPTIMAL", cp_model.INFEASIBLE: "INFEASIBLE"}
"""How a solve ends that its limits did not end."""
QUICK = 1.0
"""Deterministic seconds without a linear relaxation: small problems end sooner, others with it or not at all."""
HALF = 20.0
"""Deterministic seconds for half of the way from a bound to what matters."""
SPELL = 3.0
"""Deterministic seconds after which no other solve is begun: another family may be the one to look at."""
CLOSE = 1e-3
"""Part of what matters by which a bound is close to it."""


class Proof:
    """The cut problem of a family with the partitions that are forbidden; other families may have the same problem."""

    def __init__(self, family: int, data: str) -> None:
        self.family = family
        self.cut = CutModel(CutData.from_json(data), "bound")
        self._forbidden: set[tuple[int, ...]] = set()
        self._low = self.cut.data.least
        self._hard = self._halved = False
        self._patience = HALF

    def tell(self, request: dict[str, Any], found: Findings) -> None:
        """Report partitions that are not forbidden, from up to `count` solves; INFEASIBLE when there is none left."""
        self._forbid(map(tuple, request["forbidden"]))
        if request["most"] is not None:
            self.cut.model.add(self.cut.goal <= request["most"])
        if request["hint"]:
            self.cut.hint(tuple(request["hint"]))
        budget, status = Budget(request), cp_model.OPTIMAL
        for _ in range(request["count"]):
            status = self._least(request["most"], budget, found)
            self._forbid(self.cut.told)
            if status != cp_model.OPTIMAL or budget.spent > SPELL:
                break
        found.write(kind="end", objective="bound", status=NAMES.get(status, "UNKNOWN"), deterministic=budget.spent)

    def _least(self, most: int | None, budget: "Budget", found: Findings) -> Any:
        """Tell the partition of least bound, and those that were found on the way to it; return how that ended."""
        if not self._hard:
            status = self._minimised(budget, found, QUICK, linear=0)
            self._hard = status not in NAMES
            if status in NAMES:
                return status
        if most is not None and not self._halved:
            self._split_backward(most, budget, found)
            if budget.spent > SPELL:
                return cp_model.UNKNOWN
        status = self._minimised(budget, found, self._patience, linear=2)
        self._patience *= 1 if status in NAMES else 2
        return status

    def _minimised(self, budget: "Budget", found: Findings, most: float, *, linear: int) -> Any:
        solver, status = self.cut.minimise(budget.limits(most), found, workers=1, linear=linear)
        budget.spent += solver.response_proto.deterministic_time
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            found.write(kind="bound", units=whole(solver.best_objective_bound))
        return status

    def _split_backward(self, most: int, budget: "Budget", found: Findings) -> None:
        """Raise the bound half of the way to what matters, as long as that is soon proved; a spell of it at a time."""
        while most - self._low > most * CLOSE and budget.spent <= SPELL and not self._halved:
            middle = (self._low + most) // 2
            above, spent = self.cut.is_above(middle, budget.limits(HALF))
            budget.spent += spent
            if above:
                self._low = middle + 1
                found.bound(self._low)
            self._halved = not above
        self._halved = self._halved or most - self._low <= most * CLOSE

    def _forbid(self, partitions: Iterable[tuple[int, ...]]) -> None:
        """Forbid each of these from now on."""
        for partition in partitions:
            if partition not in self._forbidden:
                self._forbidden.add(partition)
                self.cut.model.add_bool_or([literal.negated() for literal in self.cut.literals(partition)])


class Budget:
    """What a request may spend, on the clock and in deterministic seconds."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._end, self._work, self._seed = (
            time.monotonic() + request["seconds"],
            request["deterministic"],
            request["seed"],
        )
        self.spent = 0.0

    def limits(self, most: float) -> tuple[float, float, int]:
        """Return the seconds, the deterministic seconds (no more than `most`) and the seed of a solve."""
        return max(0.0, self._end - time.monotonic()), min(most, max(0.0, self._work - self.spent)), self._seed
