"""The contiguous problem as a CP-SAT model, whose variables say if an item is on one of the devices up to this one.

Precedence is then an implication, and what a device holds is a difference of two such variables. A device pays for a
tensor where it has one end of it and not another. Coefficients are rounded down, so that the model's bound is one of
the problem. Items that no cut under the best known load may separate are contracted before. Leaves out how the first
cut is found (`benchmarks.peer_problems.contiguous_search`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from queue import Empty, SimpleQueue
from threading import Thread

from ortools.sat.python import cp_model

from benchmarks.peer_problems.readers.dnn_groups import Groups

LARGEST = 2**40
"""The best known load in units of the model."""
WORKERS = 4
WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Solved:
    """The best cut that the model found (the device of each item; none when nothing was better), and its bound."""

    devices: tuple[int, ...] | None
    lower_bound: float
    is_infeasible: bool
    interrupted: bool


class _Model:
    """Variables and constraints of one problem."""

    def __init__(self, groups: Groups, num_devices: int, scale: float) -> None:
        self.groups, self.devices, self.scale = groups, range(num_devices), scale
        self.model = cp_model.CpModel()
        items = range(groups.num_items)
        self.upto = [[self.model.new_bool_var(f"upto_{i}_{d}") for d in self.devices[:-1]] for i in items]
        self.inside = [[self.model.new_bool_var(f"inside_{i}_{d}") for d in self.devices] for i in items]
        tensors = range(len(groups.tensors))
        self.paid = [[self.model.new_bool_var(f"paid_{t}_{d}") for d in self.devices] for t in tensors]
        self.load = self.model.new_int_var(0, LARGEST, "load")
        self._place_items_in_order()
        self._pay_for_torn_tensors()
        self._load_devices()
        self.model.minimize(self.load)

    def _place_items_in_order(self) -> None:
        """Put each item on one device, no later than those that it leads to."""
        for upto, inside in zip(self.upto, self.inside, strict=True):
            for earlier, later in pairwise(upto):
                self.model.add_implication(earlier, later)
            for d in self.devices:
                self.model.add(inside[d] == (upto[d] if d < len(upto) else 1) - (upto[d - 1] if d else 0))
            self.model.add_exactly_one(inside)
        for a, b in self.groups.arcs:
            for earlier, later in zip(self.upto[a], self.upto[b], strict=True):
                self.model.add_implication(later, earlier)

    def _pay_for_torn_tensors(self) -> None:
        """Let a device pay for a tensor if it has the producer and not a reader, or a reader and not the producer."""
        for paid, (row, _) in zip(self.paid, self.groups.tensors, strict=True):
            for other in row[1:]:
                for d, here, there in zip(self.devices, self.inside[row[0]], self.inside[other], strict=True):
                    self.model.add_bool_or(here.negated(), there, paid[d])
                    self.model.add_bool_or(there.negated(), here, paid[d])

    def _load_devices(self) -> None:
        """Keep the load at that of each device at least, and at an even share of all work."""
        works = [int(work * self.scale) for work in self.groups.works]
        costs = [int(cost * self.scale) for _, cost in self.groups.tensors]
        for d in self.devices:
            work = sum(work * inside[d] for work, inside in zip(works, self.inside, strict=True))
            self.model.add(self.load >= work + sum(cost * paid[d] for cost, paid in zip(costs, self.paid, strict=True)))
        self.model.add(self.load * len(self.devices) >= sum(works))

    def keep_within(self, limit: float) -> None:
        """Let no device hold more than so many bytes."""
        whole = all(size == int(size) for size in self.groups.sizes)
        unit = 1.0 if whole else limit / LARGEST  # sizes in other units than bytes have fractions
        for d in self.devices:
            held = (int(size / unit) * inside[d] for size, inside in zip(self.groups.sizes, self.inside, strict=True))
            self.model.add(sum(held) <= int(limit / unit))

    def hint(self, devices: Sequence[int]) -> None:
        """Start from a cut, every variable of it."""
        loads = [0] * len(self.devices)
        for i, place in enumerate(devices):
            loads[place] += int(self.groups.works[i] * self.scale)
            for d, inside in enumerate(self.inside[i]):
                self.model.add_hint(inside, int(place == d))
            for d, upto in enumerate(self.upto[i]):
                self.model.add_hint(upto, int(place <= d))
        for paid, (row, cost) in zip(self.paid, self.groups.tensors, strict=True):
            places = {devices[item] for item in row}
            for d, each in enumerate(paid):
                pays = d in places and len(places) > 1
                loads[d] += int(cost * self.scale) * pays
                self.model.add_hint(each, int(pays))
        self.model.add_hint(self.load, max(loads))


def solve(
    groups: Groups, num_devices: int, limit: float, hint: Sequence[int] | None, most: float, seconds: float
) -> Solved:
    """Minimise the largest load.

    Parameters
    ----------
    limit : float
        Bytes of a device; infinite when there is none.
    hint : sequence of int, optional
        A device of each item.
    most : float
        A load that can be reached; only as good ones are sought.
    """
    stated = _Model(groups, num_devices, LARGEST / most if most > 0 else 1.0)
    if limit < math.inf:
        stated.keep_within(limit)
    if hint is not None:
        stated.hint(hint)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = WORKERS
    status, interrupted = _run(solver, stated.model)
    found = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = tuple(next(d for d, inside in enumerate(row) if solver.value(inside)) for row in stated.inside)
    bound = 0.0 if status == cp_model.UNKNOWN else solver.best_objective_bound / stated.scale
    return Solved(found, max(0.0, bound), status == cp_model.INFEASIBLE, interrupted)


def _run(solver: cp_model.CpSolver, model: cp_model.CpModel) -> tuple[cp_model.CpSolverStatus, bool]:
    """Solve in a thread, so that Ctrl-C reaches Python, which ends the solver with the best that it has."""
    status: SimpleQueue[cp_model.CpSolverStatus] = SimpleQueue()
    solver.parameters.catch_sigint_signal = False
    Thread(target=lambda: status.put(solver.solve(model))).start()
    interrupted = False
    while True:
        try:
            return status.get(timeout=WAIT_S), interrupted
        except Empty:
            continue
        except KeyboardInterrupt:
            interrupted = True
            solver.stop_search()
