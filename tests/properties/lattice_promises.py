"""What the bound by the lattice promises: no cut of its family is quicker, however it is numbered and simulated.

Held against brute force on random small problems (`tests.properties.exact_promises`), every third of equal branches,
which the lattice does not tell apart; with split backwards, against the orders that `graph-zb` makes of every cut.
"""

from dataclasses import replace
from random import Random

from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.stages.config import StageConfig
from planner.candidate.order import WITHIN_LIMIT
from planner.question.problem import Problem
from planner.search.solvers.lattice.bound import LatticeBound
from planner.search.solvers.relaxation.build import cut_data
from planner.search.space.family import Family
from planner.search.state.prepared import PreparedProblem
from tests.properties.exact_promises import MOST_CUTS, every_plan, numberings, random_problem
from tests.support.pipelines import pipelines
from tests.support.random_profiles import branches

ABOVE = (1.0001, 1.1, 4.0)
"""Steps that are to be beaten, in parts of the best: a bound is never above the best itself."""


def failures(num_cases: int) -> list[str]:
    """Return a line for each family whose bound is above one of its cuts."""
    return [f"seed {seed}: {text}" for seed in range(num_cases) for text in problem_failures(random_lattice(seed))]


def random_lattice(seed: int) -> tuple[Problem, list[tuple[int, ...]]]:
    """Return a problem and its numbered partitions, few enough for brute force."""
    rng, size = Random(f"lattice {seed}"), 3 + seed % 7
    while True:
        problem, cuts = random_branches(rng) if seed % 3 == 0 else random_problem(rng, size)
        if 0 < len(cuts) <= MOST_CUTS:  # pins may ask for a cut where none is
            return replace(problem, memory_limit_bytes=None), cuts
        size = max(3, size - rng.choice((0, 1)))


def random_branches(rng: Random) -> tuple[Problem, list[tuple[int, ...]]]:
    """Return equal branches that meet, on few devices."""
    profile = branches(
        rng.choice((2, 3)), rng.choice((1, 2)), rng.choice((700, 3000)), head=rng.choice((1, 2)),
        latency_ns=rng.choice((0, 300, 2000)), tensor_bytes=rng.choice((10, 9000)),
        parameter_bytes=rng.choice((100, 20_000)),
        whole=WholeModelMeasurements((1, 2, 4), accumulate_ns=rng.choice((0, 700)), optimizer_ns=rng.choice((0, 5000))),
    )  # fmt: skip
    problem = pipelines(profile, rng.choice((2, 3, 4)), rng.choice((4, 8)), schedule="auto", max_stages=3)
    return problem, list(numberings(problem, []))


def problem_failures(case: tuple[Problem, list[tuple[int, ...]]]) -> list[str]:
    """Say which families of a problem have a cut that is quicker than their bound."""
    whole, cuts = case
    found = []
    for problem in (whole, replace(whole, schedule=WITHIN_LIMIT)):
        prepared, best = PreparedProblem(problem), dict[tuple[StageConfig, int], int]()
        for each in every_plan(problem, cuts):
            key = each.candidate.places[0].config, each.candidate.microbatch_size
            best[key] = min(each.step_time_ns, best.get(key, each.step_time_ns))
        for family in filter(prepared.free_bounds.is_bounded_exactly, prepared.families.all):
            best_ns = best.get((family.config, family.microbatch_size), 0)
            bounds = [bound_of(prepared, family, int(best_ns * above)) for above in ABOVE if best_ns]
            if best_ns and max(*bounds, prepared.free_bounds.closed_form_ns(family)) > best_ns:
                found.append(
                    f"{family}: bounds {bounds}, {prepared.free_bounds.closed_form_ns(family)} above {best_ns}"
                )
    return found


def bound_of(prepared: PreparedProblem, family: Family, step_ns: int) -> int:
    """Return what is proved of a family in the end, for steps up to a given one."""
    lattice = LatticeBound(cut_data(prepared.cuts(family), 0, binding=False))
    return max((each.bound_ns for each in lattice.rise(step_ns)), default=0)
