"""What every part of a search is: a subsolver that takes turns, and the state that all of them share.

A subsolver makes first plans, improves plans or proves bounds. It works in pieces, and between two of them the loop
(`planner.search.loop`) may give the turn to another. What it finds goes to the pool of candidates or to the bounds of
families. Leaves out whose turn it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Iterable
from functools import cached_property
from typing import ClassVar

from planner.candidate.evaluate import Evaluated
from planner.question.problem import Problem, Report
from planner.question.targets import default_target
from planner.search.bounders.family_bounds import FamilyBounds
from planner.search.bounders.lattice import LatticeBounder
from planner.search.budget import Deadline, OrderPace, WriteReserve, clock_s
from planner.search.solvers.annealing.readiness import Kernels
from planner.search.solvers.cpsat.child import Solver
from planner.search.space.family import Family
from planner.search.state.focus import FamilySelector
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.state.record import Kind, SearchRecord
from planner.search.state.result import WarmStartOutcome


class SearchState:
    """What the subsolvers of one search share.

    Parameters
    ----------
    problem : Problem
    report : Report or None
        Told of each better plan and bound.

    Attributes
    ----------
    limits : Deadline
        Of the whole search.
    looked : set of Family
        Families that were priced.
    solver, bounder : Solver
        Processes for the cut model and for bounds.
    """

    def __init__(self, problem: Problem, report: Report | None) -> None:
        self.problem, self.prepared, self.record = problem, PreparedProblem(problem), SearchRecord()
        self.aim = problem.target or default_target(problem)[0]
        self.limits = Deadline(clock_s(problem))
        self.writing = WriteReserve(problem, self.limits)
        self.pool = CandidatePool(
            problem, self.aim, self.prepared.layer_alignment, report, writing=self.writing, record=self.record,
            fits_for_sure=self.prepared.fits_for_sure,
        )  # fmt: skip
        self.bounds = FamilyBounds(self.prepared, self.pool)
        self.prospects = FamilySelector(self.prepared, self.pool, self.bounds.of)
        self.solver, self.bounder, self.kernels, self.pace = Solver(), Solver(), Kernels(), OrderPace()
        self.bounding = LatticeBounder(self.bounds, self.bounder, self.pace)
        self.looked: set[Family] = set()
        self.old_plan: WarmStartOutcome | None = None
        self.solver_lost = self.closed = self.left_out = False

    @cached_property
    def counted(self) -> bool:
        """Whether work is counted, and no clock decides what is found."""
        return self.problem.effort.deterministic_limit is not None

    def look_at(self, family: Family) -> None:
        """Count a family among those that were priced."""
        self.looked.add(family)
        self.bounds.num_seen = len(self.looked)

    def offer_by_stage(self, candidates: Iterable[Evaluated]) -> None:
        """Take candidates whose stages may differ.

        One over which no bound of a family ranges counts where it is so much faster than the best plan that this would
        not be chosen as the simpler one.
        """
        pool = self.pool
        for each in candidates:
            faster = not pool.best_fits or each.step_time_ns * self.problem.near < pool.best.step_time_ns
            if faster or self.bounds.range_over(each.candidate):
                pool.offer([each])

    def has_plan(self) -> bool:
        """Whether anything that the target runs was found to fit."""
        return self.pool.best_fits


class Subsolver(ABC):
    """One part of a search.

    Attributes
    ----------
    name : str
        In progress lines, and in `searched` of ``plan --json``.
    kind : str
        ``first`` makes plans while nothing fits, ``improve`` betters them, ``prove`` raises bounds.
    slice : Deadline
        Until which it has the turn: for pieces that take long.
    done : set
        The candidates, families or cuts that it has dealt with, where it deals with each once.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = "improve"

    def __init__(self, state: SearchState) -> None:
        self.state, self.slice, self.done = state, Deadline(0.0), set[Hashable]()
        self._steps: Generator[None] | None = None

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether it can do anything for a problem; asked once."""
        return cls.kind != "improve" or not (state.prepared.pinned_partition or state.problem.planner == "chain")

    @abstractmethod
    def steps(self) -> Generator[None]:
        """Do all that there is to do for what is known now, and yield after each piece."""

    def step(self) -> bool:
        """Do a piece; False where there was nothing to do, until something new is known."""
        if self._steps is None:
            self._steps = self.steps()
        for _ in self._steps:
            return True
        self._steps = None
        return False

    def close(self) -> None:
        """Give back what a piece that was not the last one holds."""
        if self._steps is not None:
            self._steps.close()
