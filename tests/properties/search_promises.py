"""How near the search without flags comes to the best of brute force on small random problems.

Brute force (`tests.properties.exact_promises`) goes through every numbered partition with each choice of replicas,
ZeRO, recompute and micro-batch size, here under every order of the fused family that numbers in flight make, not named
ones alone.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from costmodel.errors import NoPlanFits
from planner.answer.decide import plan
from planner.candidate.candidate import IN_FLIGHT, Candidate
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.graph.atoms import Atoms
from planner.question.problem import AUTO, Problem
from simulator.bounds import bound_of
from tests.properties.exact_promises import COUNTED, Case, random_plans, solved_here

NEAR, EQUAL_PART, NEAR_PART = 1.01, 0.9, 0.99
"""Answers are equal to the best in so large a part of all cases, and this near to it in so large a part."""


def failures(num_cases: int) -> list[str]:
    """Return a line for each false claim, and what the answers were like if too many are not the best."""
    rows = [(seed, ratio_or_claim(seed)) for seed in range(num_cases)]
    found = [f"seed {seed}: {each}" for seed, each in rows if isinstance(each, str)]
    ratios = sorted(((each, seed) for seed, each in rows if isinstance(each, float)), reverse=True)
    for most, part in ((1.0, EQUAL_PART), (NEAR, NEAR_PART)):
        above = [f"{ratio:.4f} (seed {seed})" for ratio, seed in ratios if ratio > most]
        if len(above) > (1 - part) * len(ratios):
            found.append(f"{len(above)} of {len(ratios)} are above {most} times the best: {', '.join(above[:20])}")
    return found


def ratio_or_claim(seed: int) -> float | str | None:
    """Return the answer's best step over that of brute force, or what is false; None where nothing fits, as said."""
    case = open_case(seed)
    with solved_here():
        try:
            found = plan(replace(case.problem, effort=COUNTED)).search
        except NoPlanFits as error:
            return None if case.best_ns is None else f"no plan, the best is {case.best_ns}: {error}"
    if case.best_ns is None:
        return None  # replicas that differ by stage may fit where no others do
    if (found.lower_bound_ns or 0) > case.best_ns:
        return f"bound {found.lower_bound_ns} above the best, {case.best_ns}"
    return found.best_step_time_ns / case.best_ns


def open_case(seed: int) -> Case:
    """Return a random problem, its memory limit drawn from what its plans hold, and its best step in any order."""
    problem, cuts, plans, limit = random_plans(seed)
    limited = replace(problem, memory_limit_bytes=limit)
    fitting = [each.step_time_ns for each in plans if limit is None or each.excess_bytes + 1 <= limit]
    best_ns = min(fitting, default=None)
    for each in every_order(limited, cuts, plans, best_ns):
        if each.fits and (best_ns is None or each.step_time_ns < best_ns):
            best_ns = each.step_time_ns
    return Case(limited, best_ns)


def every_order(
    problem: Problem, cuts: list[tuple[int, ...]], plans: list[Evaluated], best_ns: int | None
) -> Iterator[Evaluated]:
    """Simulate all numbers in flight of each plan whose bound is below the best."""
    if problem.schedule != AUTO:
        return
    pieces = Atoms(problem.profile.graph, tuple((i,) for i in range(len(problem.profile.graph.operators))))
    evaluators = {size: Evaluator(replace(problem, pins=None), pieces, size) for size in range(1, 5)}
    seen: set[Candidate] = set()
    for each in plans:
        tried = replace(each.candidate, schedule=IN_FLIGHT)
        if tried in seen or tried.num_stages == 1:
            continue
        seen.add(tried)
        evaluator = evaluators[tried.microbatch_size]
        run = evaluator.simulate(each.candidate)
        speeds = evaluator.speeds_of(run.blocks)
        if best_ns and bound_of(run.times.structure.schedule, run.times.costs, speeds=speeds).ns >= best_ns:
            continue
        rounds = run.times.structure.schedule.num_microbatches // tried.places[0].config.data
        most = min(rounds, tried.num_stages + 1)
        for numbers in product(range(1, most + 1), repeat=tried.num_stages):
            yield evaluator.evaluate(replace(tried, in_flight=numbers))
