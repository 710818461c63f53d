"""What a plan's nearest alternatives take: boundaries moved by one piece either way, other schedules of the same cut.

Each is priced, ordered and simulated as a search would do it, with all else as the plan has it, so that pinning the
changed stages gives the same step. Leaves out answers of a new search (`planner.report.why.replanned`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.errors import DoesNotMatch, PenstockError
from planner.candidate.candidate import IN_FLIGHT, Candidate
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.candidate.from_plan_file import candidate_of, partition_of, passes_on, renumbered
from planner.graph.atoms import numbered, prepare
from planner.plan import Plan
from planner.question.problem import AUTO_LOOPED, AUTO_NAMED, BY_NAME, Problem
from simulator.schedules import SCHEDULES

BESIDE = tuple(name for name in SCHEDULES if name != IN_FLIGHT)
"""Schedules that a cut is tried under; of those with numbers in flight of their own only a search knows the best."""


@dataclass(frozen=True, slots=True)
class Move:
    """Operators that no cut divides, moved from one stage into another across an edge of the stage graph.

    `excess_bytes` is by how much the worst rank is then over its memory limit.
    """

    source: int
    target: int
    operators: tuple[str, ...]
    step_time_ns: int
    excess_bytes: int


@dataclass(frozen=True, slots=True)
class Otherwise:
    """The same cut under another schedule."""

    schedule: str
    step_time_ns: int
    excess_bytes: int


class Alternatives:
    """A plan's candidate on its problem, and what is near it.

    Raises
    ------
    DoesNotMatch
        When the profile does not admit the plan's cut.
    """

    def __init__(self, plan: Plan, problem: Problem) -> None:
        self.plan, self.atoms = plan, prepare(problem.profile.graph)
        partition, why_not = partition_of(plan, self.atoms)
        if partition is None:
            raise DoesNotMatch(f"the plan does not hold with this profile: {why_not}; plan again from it")
        line, ranks = passes_on(plan, self.atoms, problem), range(len(plan.orders))
        self._evaluator = Evaluator(problem, self.atoms, plan.batch.microbatch_size)
        self._own = candidate_of(plan, self.atoms, partition, ranks, line=line)
        self._planned = renumbered(plan, self.atoms, partition)  # by the candidate's number the plan's
        self._stage_of = [self._planned[stage] for stage in partition]

    @cached_property
    def own(self) -> Evaluated:
        """The plan itself, priced with this profile."""
        return self._evaluator.evaluate(self._own)

    def moves(self) -> Iterator[Move]:
        """Yield every boundary moved by one piece: the last of the source into the target, the first of that back."""
        for edge in self.plan.edges:
            for source, target in ((edge.source, edge.target), (edge.target, edge.source)):
                yield from self._across(source, target)

    def _across(self, source: int, target: int) -> Iterator[Move]:
        """Yield the first move from one stage into another that leaves a stage graph."""
        downstream = any((edge.source, edge.target) == (source, target) for edge in self.plan.edges)
        beyond = self.atoms.successors if downstream else self.atoms.predecessors
        held = [atom for atom, stage in enumerate(self._stage_of) if stage == source]
        for atom in reversed(held) if downstream else held:
            stages = {self._stage_of[other] for other in beyond[atom]}
            if source in stages or target not in stages or len(held) == 1:
                continue
            found = self._moved(atom, target)
            if found:
                names = [self.atoms.graph.operators[i].name for i in self.atoms.members[atom]]
                yield Move(source, target, tuple(names), found.step_time_ns, found.excess_bytes)
                return

    def _moved(self, atom: int, target: int) -> Evaluated | None:
        """Simulate the plan with one atom in another stage; None where stages would wait for each other."""
        stage_of = list(self._stage_of)
        stage_of[atom] = target
        partition = numbered(self.atoms, stage_of, as_named=True)
        if partition is None:
            return None
        order = [self._planned.index(stage) for _, stage in sorted(set(zip(partition, stage_of, strict=True)))]
        return self._evaluate(
            replace(
                self._own,
                partition=partition,
                places=tuple(self._own.places[i] for i in order),
                in_flight=tuple(self._own.in_flight[i] for i in order) if self._own.in_flight else (),
            )
        )

    def schedules(self) -> Iterator[Otherwise]:
        """Yield the same cut under every other schedule that runs on its places; one stage needs none.

        Of those that the target runs, where it was one that runs them by name.
        """
        names = (*AUTO_NAMED, *AUTO_LOOPED) if self._evaluator.problem.target in BY_NAME else BESIDE
        for name in names if len(self.plan.stages) > 1 else ():
            found = self._evaluate(replace(self._own, schedule=name, in_flight=()))
            if found and name != self.plan.schedule:
                yield Otherwise(name, found.step_time_ns, found.excess_bytes)

    def _evaluate(self, candidate: Candidate) -> Evaluated | None:
        try:
            return self._evaluator.evaluate(candidate)
        except PenstockError:  # no such order on these places, or a host without room
            return None
