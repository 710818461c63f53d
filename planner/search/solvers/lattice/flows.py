"""Flows that weigh the paths of a cut problem, and the linear program that finds better ones.

One unit of flow starts at atoms and goes along edges; where some of it ends, that much of a path ends. Parts of it go
there and back, the others there alone. For each known cut the weighted paths bound its step; the flows that make the
least of these bounds largest are asked for next (Kelley's cutting planes: Kelley, The cutting-plane method for solving
convex programs, Journal of SIAM 8(4), 1960). Leaves out how cuts are found.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.linear_solver import pywraplp

from planner.search.solvers.lattice.copies import Pattern
from planner.search.solvers.lattice.downsets import Downsets, Ints
from planner.search.solvers.lattice.graph import AHEAD, BACK, CLOSING, PATH, THERE, WORK, Floats, Kinds, Lattice
from planner.search.solvers.lattice.kernels import PathFlows


@dataclass(frozen=True)
class PathWeights:
    """Flows by class: of each atom what ends there, of each edge what it carries, both by way.

    Attributes
    ----------
    ends : array of shape (2, atoms)
    carried : array of shape (2, kinds)
    """

    ends: Floats
    carried: Floats

    def towards(self, other: "PathWeights", part: float) -> "PathWeights":
        """Return what lies so far on the way to others."""
        return PathWeights(
            self.ends + part * (other.ends - self.ends), self.carried + part * (other.carried - self.carried)
        )


@dataclass(frozen=True, slots=True)
class Form:
    """What a step is, seen as paths.

    Attributes
    ----------
    rounds : tuple of (int, int)
        Micro-batches of a stage that count where a flow ends, by way.
    together : bool
        Whether both ways have one unit of flow together; else each has one.
    """

    rounds: tuple[int, int]
    together: bool


class Master:
    """The linear program, and what flows are to the lattice.

    Parameters
    ----------
    lattice : Lattice
    downsets : Downsets
    kinds : Kinds
    pattern : Pattern
    form : Form
    """

    def __init__(self, lattice: Lattice, downsets: Downsets, kinds: Kinds, pattern: Pattern, form: Form) -> None:
        self._lattice, self._kinds, self._form = lattice, kinds, form
        self._classes = sorted(set(pattern.class_of))
        column = {atom: i for i, atom in enumerate(self._classes)}
        self._class_of = np.array([column[c] for c in pattern.class_of])
        self._sizes = np.bincount(self._class_of).astype(float)
        self._held = np.zeros((len(downsets), len(self._classes)))
        for atom, c in enumerate(self._class_of):
            self._held[:, c] += downsets.holds[:, atom]
        self._scale = float(lattice.sums[-1, WORK]) * lattice.num_microbatches
        self.forget()

    def forget(self) -> None:
        """Drop all cuts; of each class and way, what starts is what ends and leaves beyond what comes in."""
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        solver, kinds = self._solver, self._kinds
        solver.SetSolverSpecificParametersAsString("use_dual_simplex: true use_preprocessing: false")
        self._least = solver.NumVar(0.0, solver.infinity(), "")
        self._ends = [[solver.NumVar(0.0, 1.0, "") for _ in self._classes] for _ in (BACK, THERE)]
        self._carried = [
            [solver.NumVar(0.0, 1.0 if kinds.ways[way, kind] else 0.0, "") for kind in range(len(kinds.members))]
            for way in (BACK, THERE)
        ]
        starts: list[list[Any]] = [[], []]
        for way in (BACK, THERE):
            rows = [{self._ends[way][c]: 1.0} for c in range(len(self._classes))]
            for kind, members in enumerate(kinds.members):
                flow = self._carried[way][kind]
                for u, v in members:
                    for atom, sign in ((u, 1.0), (v, -1.0)):
                        row = rows[self._class_of[atom]]
                        row[flow] = row.get(flow, 0.0) + sign / self._sizes[self._class_of[atom]]
            for c, row in enumerate(rows):
                start = solver.NumVar(0.0, 1.0, "")
                solver.Add(start == sum(share * flow for flow, share in row.items()))
                starts[way].append(self._sizes[c] * start)
        for units in [starts[BACK] + starts[THERE]] if self._form.together else starts:
            solver.Add(sum(units) == 1.0)
        solver.Maximize(self._least)

    def even(self) -> PathWeights:
        """Return flows that end where they start, as much in each atom as it has of the work."""
        works = np.zeros(len(self._classes))
        sums = self._lattice.sums
        for d in range(1, len(sums)):
            s = self._lattice.below[self._lattice.first[d]]
            c = int(np.argmax(self._held[d] - self._held[s]))
            works[c] = sums[d, WORK] - sums[s, WORK]
        works /= max(1.0, float(works @ self._sizes))
        ends = np.array([works, np.zeros(len(works)) if self._form.together else works])
        return PathWeights(ends, np.zeros((2, len(self._kinds.members))))

    def learn(self, way: Ints) -> None:
        """Take the bound of a cut, the downsets between its stages."""
        solver = self._solver
        ends, carried = self._bound_of(way)
        bound = solver.Constraint(-solver.infinity(), 0.0)
        bound.SetCoefficient(self._least, 1.0)
        for w in (BACK, THERE):
            for c, value in enumerate(ends[w]):
                bound.SetCoefficient(self._ends[w][c], -float(value) / self._scale)
            for kind, value in enumerate(carried[w]):
                bound.SetCoefficient(self._carried[w][kind], -float(value) / self._scale)

    def closed(self, way: Ints) -> float:
        """Return the least step that the stages of a cut allow, each for itself."""
        at, worst = self._lattice, 0.0
        for s, d in pairwise(way):
            own = at.sums[d] - at.sums[s]
            entering = self._crossing(s) > np.minimum(self._crossing(s), self._crossing(d))
            back, head = np.max(np.where(entering, at.heads, 0.0), axis=1, initial=0.0)
            worst = max(worst, at.num_microbatches * own[WORK] + max(back, head + own[CLOSING]))
        return worst

    def _bound_of(self, way: Ints) -> tuple[Floats, Floats]:
        """Return what a cut's step takes at least for each unit that ends in a class, or that an edge carries."""
        at, kinds = self._lattice, len(self._kinds.members)
        ends, carried = np.zeros((2, len(self._classes))), np.zeros((2, kinds))
        for s, d in pairwise(way):
            own, held = at.sums[d] - at.sums[s], self._held[d] - self._held[s]
            ends[BACK] += self._form.rounds[BACK] * own[WORK] * held
            ends[THERE] += (self._form.rounds[THERE] * own[WORK] + own[CLOSING]) * held
            leaving = self._crossing(d) - np.minimum(self._crossing(d), self._crossing(s))
            for w, column in ((BACK, PATH), (THERE, AHEAD)):
                carried[w] += (own[column] + self._kinds.times[w]) * leaving
        return ends, carried

    def _crossing(self, downset: int) -> Floats:
        found = np.zeros(len(self._kinds.members))
        rows = slice(self._lattice.crossing_first[downset], self._lattice.crossing_first[downset + 1])
        found[self._lattice.crossing[rows]] = self._lattice.counts[rows]
        return found

    def best(self) -> tuple[float, PathWeights] | None:
        """Return the largest least bound of the known cuts, and its flows; None where the program has no answer.

        What the solver rounds is taken off: flows that come to more than one unit would prove too much.
        """
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        ends = np.array([[max(0.0, flow.solution_value()) for flow in row] for row in self._ends])
        carried = np.array([[max(0.0, flow.solution_value()) for flow in row] for row in self._carried])
        started = np.array([self._start_of(w, ends, carried) for w in (BACK, THERE)])
        if self._form.together:
            started[:] = started.sum()
        scale = 1.0 / np.maximum(1.0, started)[:, None]
        return self._solver.Objective().Value() * self._scale, PathWeights(ends * scale, carried * scale)

    def _start_of(self, way: int, ends: Floats, carried: Floats) -> float:
        """Return what must start somewhere for these amounts to end and to flow."""
        starts = ends[way].copy()
        for kind, members in enumerate(self._kinds.members):
            for u, v in members:
                for atom, sign in ((u, 1.0), (v, -1.0)):
                    c = self._class_of[atom]
                    starts[c] += sign * carried[way, kind] / self._sizes[c]
        return float(np.maximum(starts, 0.0) @ self._sizes)

    def flows(self, weights: PathWeights) -> PathFlows:
        """Return what flows are to the lattice."""
        at, kinds = self._lattice, self._kinds
        carried = np.concatenate([weights.carried, weights.carried * kinds.times]).T.copy()
        rows = np.repeat(np.arange(len(at.sums)), np.diff(at.crossing_first))
        leaving = np.zeros((len(at.sums), 4))
        for column in range(4):
            amounts = carried[at.crossing, column] * at.counts
            leaving[:, column] = np.bincount(rows, amounts, len(at.sums))
        rounds = np.array(self._form.rounds) / at.num_microbatches
        return PathFlows((self._held @ weights.ends.T) * rounds, leaving, carried)
