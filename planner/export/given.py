"""Plans that somebody else made: stages, places and orders as given, priced on the road that every candidate takes.

Leaves out how they are read (`planner.export.read_layout`, `planner.export.read_torch_csv`) and any search.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.errors import InvalidInput, NoPlanFits, ReadableButWrong
from costmodel.stages.config import StageConfig
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluator
from planner.candidate.make import make
from planner.checker import check_plan
from planner.graph.atoms import Atoms, prepare
from planner.plan import Plan, SearchResult
from planner.plan.rank_order import RANK_ORDER, RankOrder, ranks_of_places
from planner.question.problem import Problem
from simulator.schedules.kind import Orders


@dataclass(frozen=True)
class Given:
    """Stages in a line, all configured alike.

    Attributes
    ----------
    source : str
        What it was read from, for people.
    stages : tuple of tuple of int
        Positions of each stage's operators.
    places : tuple of int
        The place of each stage.
    config : StageConfig
    schedule : str
    orders : Orders
        The compute of each place for one replica; empty where the schedule of the catalogue says it.
    rank_order : RankOrder
        In which places take the ranks.
    """

    source: str
    stages: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]
    config: StageConfig
    schedule: str
    orders: Orders = ()
    rank_order: RankOrder = RANK_ORDER


def given_plan(problem: Problem, given: Given, *, must_fit: bool = True) -> Plan:
    """Return the plan of what was given, simulated and checked; without `must_fit` also of what memory does not hold.

    Raises
    ------
    InvalidInput
        For stages between which the model's data flows back.
    NoPlanFits
        When a rank holds more than its memory: says which, and by how much.
    ReadableButWrong
        When the independent checker finds a problem.
    """
    assert problem.microbatch_size  # noqa: S101 - whoever reads orders knows it
    atoms = prepare(problem.profile.graph, [(row[0], other) for row in given.stages for other in row[1:]])
    ranks = ranks_of_places(given.config, max(given.places) + 1, given.rank_order)
    places = tuple(StagePlacement(given.config, ranks[place]) for place in given.places)
    candidate = Candidate(
        _partition(atoms, given), places, problem.microbatch_size, given.schedule, line=True, orders=given.orders
    )
    evaluator = Evaluator(problem, atoms, problem.microbatch_size)
    found = evaluator.evaluate(candidate)
    if must_fit and not found.fits:
        raise _too_large(evaluator, candidate, given)
    result = SearchResult("baseline", found.step_time_ns, None, f"none: {given.source}", {}, found.step_time_ns)
    plan = make(evaluator, candidate, result, f"given by {given.source}")
    plan = replace(plan, provenance={**plan.provenance, "options": {"imported": given.source}})
    problems = [
        each for each in check_plan(plan, problem.profile.graph) if must_fit or "its device" not in each.message
    ]
    if problems:
        raise ReadableButWrong(f"{given.source}: {problems[0].place}: {problems[0].message}")
    return plan


def _partition(atoms: Atoms, given: Given) -> tuple[int, ...]:
    """Return the stage of each atom."""
    stage_of = {position: stage for stage, row in enumerate(given.stages) for position in row}
    for members in atoms.members:
        held = sorted({stage_of[position] for position in members})
        if len(held) > 1:
            raise InvalidInput(
                f"{given.source}: the stages {held} each read an output of another of them, or share a value that is "
                "changed in place; put these modules into one stage"
            )
    partition = tuple(stage_of[members[0]] for members in atoms.members)
    for source, target in atoms.edges:
        if partition[source] > partition[target]:
            raise InvalidInput(
                f"{given.source}: stage {partition[target]} reads an output of stage {partition[source]}, which comes "
                "behind it; number stages as data flows"
            )
    return partition


def _too_large(evaluator: Evaluator, candidate: Candidate, given: Given) -> NoPlanFits:
    run = evaluator.simulate(candidate)
    peaks, limits = run.times.peak_memory_bytes, evaluator.limits(run)
    worst = max(range(len(peaks)), key=lambda i: peaks[i] - limits[i])
    return NoPlanFits(
        f"{given.source}: rank {run.blocks[worst][0]} peaks at {peaks[worst]} bytes, {peaks[worst] - limits[worst]} "
        f"above the {limits[worst]} of its device; give --recompute, --zero or other degrees as your job has them, or "
        "a --cluster whose devices have the memory"
    )


def operators_of(parts: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of each part's operators."""
    found: dict[str, list[int]] = {}
    for position, part in enumerate(parts):
        found.setdefault(part, []).append(position)
    return found
