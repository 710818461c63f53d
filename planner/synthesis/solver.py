"""The process that seeks orders: one JSON object on stdin, one JSON line a finding on stdout.

It runs apart from the planner, so that a crash of the solver or a deadline costs no more than this search.
"""

import json
import os
import signal
import sys
import threading
from typing import Any

from ortools.sat.python import cp_model

from planner.synthesis.order_model import OrderModel
from simulator.schedules.job_shop import job_shop_from_json

WORKERS = 4
"""Of CP-SAT, on any number of cores."""


class SolutionTeller(cp_model.CpSolverSolutionCallback):
    """Tells every better solution as it comes."""

    def __init__(self, orders: OrderModel) -> None:
        super().__init__()
        self.orders = orders

    def on_solution_callback(self) -> None:
        """Tell the starts of all jobs."""
        tell(start_ns=[self.value(start) * self.orders.unit_ns for start in self.orders.start])


def tell(**finding: object) -> None:
    """Write one finding."""
    sys.stdout.write(json.dumps(finding) + "\n")
    sys.stdout.flush()


def solve(request: dict[str, Any]) -> None:
    """Seek orders, and tell what was found and the bound."""
    jobs = job_shop_from_json(request["jobs"])
    orders = OrderModel(jobs, request["start_ns"], request["step_ns"], request["least_ns"])
    solver = cp_model.CpSolver()
    settings = solver.parameters
    settings.max_time_in_seconds, settings.random_seed = request["seconds"], request["seed"]
    settings.num_workers, settings.interleave_search, settings.catch_sigint_signal = WORKERS, True, False
    status = solver.solve(orders.model, SolutionTeller(orders))
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        tell(bound_ns=round(solver.best_objective_bound) * orders.unit_ns)


def main() -> None:
    """Answer one request; end when the planner does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the planner hears Ctrl-C and ends this process
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_wait_for_the_end, daemon=True).start()
    solve(request)


def _wait_for_the_end() -> None:
    """End with stdin, which the planner keeps open as long as it lives."""
    while os.read(sys.stdin.fileno(), 1 << 16):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
