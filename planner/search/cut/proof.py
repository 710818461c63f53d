"""All partitions of a cut problem that matter, the least bound first, each told once: what a proof by simulation needs.

A partition that was told, or that the planner knows, is forbidden from then on (a no-good); one whose bound is above
`most` is none that matters. When no partition is left, that is proved. Leaves out what simulations say of them
(`planner.search.exact`).
"""

import time
from collections.abc import Iterable
from typing import Any

from ortools.sat.python import cp_model

from planner.search.cut.data import CutData
from planner.search.cut.model import CutModel, Findings

ENDED = (cp_model.OPTIMAL, cp_model.INFEASIBLE)
"""How a solve ends that its limits did not end."""
QUICK = 1.0
"""Deterministic seconds without a linear relaxation: small problems end sooner, others with it or not at all."""


class Proof:
    """The cut problem of a family with the partitions that are forbidden; other families may have the same problem."""

    def __init__(self, family: int, data: str) -> None:
        self.family = family
        self.cut = CutModel(CutData.from_json(data), "bound")
        self._forbidden: set[tuple[int, ...]] = set()
        self._linear = 0

    def tell(self, request: dict[str, Any], found: Findings) -> None:
        """Report partitions that are not forbidden, from up to `count` solves; INFEASIBLE when there is none left."""
        self._forbid(map(tuple, request["forbidden"]))
        if request["most"] is not None:
            self.cut.model.add(self.cut.goal <= request["most"])
        if request["hint"]:
            self.cut.hint(tuple(request["hint"]))
        end, work, status = time.monotonic() + request["seconds"], request["deterministic"], cp_model.OPTIMAL
        left = work
        for _ in range(request["count"]):
            for linear in (0, 2)[self._linear // 2 :]:
                limits = (max(0.0, end - time.monotonic()), left if linear else min(left, QUICK), request["seed"])
                solver, status = self.cut.minimise(limits, found, workers=1, linear=linear)
                left = max(0.0, left - solver.response_proto.deterministic_time)
                if status in ENDED:
                    break
                self._linear = 2
            self._forbid(self.cut.told)
            if status != cp_model.OPTIMAL:
                break
        found.end("bound", solver, status, work - left)

    def _forbid(self, partitions: Iterable[tuple[int, ...]]) -> None:
        """Forbid each of these from now on."""
        for partition in partitions:
            if partition not in self._forbidden:
                self._forbidden.add(partition)
                self.cut.model.add_bool_or([literal.negated() for literal in self.cut.literals(partition)])
