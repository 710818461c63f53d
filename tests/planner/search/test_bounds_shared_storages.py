"""Bounds under memory limits where operators share storages: brute force over every plan of tiny problems."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from costmodel.errors import NoPlanFits, UsageError
from costmodel.model.profile import Profile
from costmodel.model.whole_model import WholeModelMeasurements
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition, numbered
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.bounders.pipeline_fill import by_replicas_ns, held_by_replicas_ns, in_line_ns
from planner.search.loop import PortfolioSearch
from planner.search.solvers.lattice.replicas import ReplicasBound
from planner.search.solvers.relaxation.build import added_units, cut_data
from planner.search.space.family import Family
from planner.search.space.open_choices import allows_per_stage_replicas, with_split_backward
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem
from planner.search.state.result import SearchOutcome
from tests.support.random_profiles import profile_of, random_profile, with_shared_storages
from tests.support.solve_cut import solve

SPACES = (
    Space(data=1, chunks=1, recompute="none"),
    Space(data=2, zero=0, chunks=1),
    Space(data=2, zero=1, chunks=1),
    Space(data=1, recompute="full", chunks=1),
    Space(data=1, chunks=2),
    Space(zero=1, chunks=1),
    Space(),
)
BY_STAGE = ("graph-1f1b", "graph-eager-1f1b")
"""Schedules of stages whose replicas differ."""


QUICK = Effort(30.0, 0.0)
"""A search without the solver's process: what it proves is asked for in this one."""


def tiny(rng: Random) -> Profile:
    size = rng.randint(3, 5)
    whole = WholeModelMeasurements(
        (100, 200, 400), accumulate_ns=rng.choice((0, 700)), optimizer_ns=rng.choice((0, 5000))
    )
    profile = random_profile(
        rng, size, whole=whole, tied=[(0, size - 1)] if rng.random() < 0.3 else [], latency_ns=rng.choice((0, 300)),
        tensor_bytes=rng.choice((900, 9000)), saved_bytes=rng.choice((500, 4000)),
        parameter_bytes=rng.choice((100, 20_000)), host_ns=rng.choice((0, 0, 400)),
        frozen=frozenset({0}) if rng.random() < 0.3 else frozenset(),
    )  # fmt: skip
    return with_shared_storages(rng, profile)


def partitions(cuts: FamilyPartitions) -> list[Partition]:
    """Every partition into at most the allowed number of stages whose stage graph has no cycle."""
    most = range(min(cuts.num_stages, len(cuts.atoms)))
    found = (numbered(cuts.atoms, groups) for groups in product(most, repeat=len(cuts.atoms)))
    return sorted({partition for partition in found if partition is not None})


def every_plan(prepared: PreparedProblem) -> Iterator[Evaluated]:
    """Every cut of every family under each of its schedules, as a graph and as a line; then replicas by stage."""
    for family in prepared.families.all:
        cuts = prepared.cuts(family)
        for partition in partitions(cuts):
            places, left = divmod(max(partition) + 1, family.chunks)
            if not left and places > (family.chunks > 1):  # a loop of one place serves nothing
                for line in (False, True):
                    yield from cuts.evaluate_under(partition, cuts.schedules, line=line)
    singles = (
        prepared.families.single_replicas
        if allows_per_stage_replicas(prepared.problem, prepared.pinned) and prepared.problem.space.chunks in (None, 1)
        else ()
    )
    for family in singles:
        for partition in partitions(prepared.cuts(family)):
            yield from by_stage(prepared.cuts(family), partition)


def by_stage(cuts: FamilyPartitions, partition: Partition, names: tuple[str, ...] = BY_STAGE) -> Iterator[Evaluated]:
    """A cut with every number of replicas for each of its stages."""
    devices, num_stages = cuts.evaluator.problem.num_devices, max(partition) + 1
    for counts in product(range(1, devices + 1), repeat=num_stages):
        if sum(counts) <= devices and max(counts) > 1:
            starts = [sum(counts[:stage]) for stage in range(num_stages)]
            places = tuple(
                StagePlacement(replace(cuts.family.config, data=count), tuple(range(start, start + count)))
                for start, count in zip(starts, counts, strict=True)
            )
            for name in names:
                try:
                    yield cuts.evaluator.evaluate(Candidate(partition, places, cuts.family.microbatch_size, name))
                except (UsageError, NoPlanFits):
                    continue


def problem_of(seed: int) -> Problem:
    """A problem that says by how much every plan is over one byte: what its worst rank peaks at."""
    rng = Random(seed)
    profile, num_devices = tiny(rng), rng.choice((2, 2, 3))
    return Problem(
        profile, None, num_devices, rng.choice((4, 8, 12)), rng.choice((1, 2)), optimizer=rng.choice(("none", "adam")),
        schedule=rng.choice(("auto", "auto", "1f1b", "gpipe")), space=SPACES[seed % len(SPACES)],
        target=rng.choice(("any", "executor")), effort=QUICK, memory_limit_bytes=1,
        max_stages=rng.choice((None, None, 2)),
    )  # fmt: skip


def bound_failures(seed: int, effort: Effort = QUICK) -> list[str]:
    """Bounds above a plan that fits, and false proofs that none does, at the least limit and one in the middle."""
    problem = problem_of(seed)
    prepared = PreparedProblem(problem)
    plans = list(every_plan(prepared))
    peaks = sorted({each.excess_bytes + 1 for each in plans})
    failures = []
    for limit in {peaks[0], peaks[len(peaks) // 2]} if peaks else ():
        limited = replace(problem, memory_limit_bytes=limit)
        fitting = [each for each in plans if each.excess_bytes + 1 <= limit]
        found = [*_of_families(limited, prepared, fitting), *_of_search(replace(limited, effort=effort), fitting)]
        failures += [f"{seed}, {limit} bytes: {line}" for line in found]
    return failures


def _of_families(limited: Problem, known: PreparedProblem, fitting: list[Evaluated]) -> Iterator[str]:
    prepared = PreparedProblem(limited)
    for family in prepared.families.all:
        own = [each for each in fitting if known.family_of.get(each.candidate) == family]
        for places in range(1, prepared.families.max_pipeline_stages(family) + 1):
            steps = [e.step_time_ns for e in own if e.candidate.num_stages == places * family.chunks]
            proved_ns = prepared.free_bounds.closed_form_ns(family, places)
            if steps and proved_ns > min(steps):
                yield f"{family} on {places} places: {proved_ns} above {min(steps)}"
        if own and in_line_ns(prepared, family) > min(each.step_time_ns for each in own):
            yield f"{family}: in a line {in_line_ns(prepared, family)}"
        if prepared.free_bounds.is_cut_exactly(family):
            cuts = prepared.cuts(family)
            found = solve(cut_data(cuts, 0, cuts.memory_can_bind))
            if own and found[-1]["status"] == "INFEASIBLE":
                yield f"{family}: called infeasible"
            units = [int(str(f["units"])) for f in found if f["kind"] == "bound"]
            best = min((each.step_time_ns for each in own), default=None)
            if best is not None and units and max(units) * cut_data(cuts, 0, binding=False).unit_ns > best:
                yield f"{family}: proved {max(units)} above {best}"
    for family in prepared.families.single_replicas:
        varied = [each for each in fitting if known.family_of.get(each.candidate) is None and _varies(each, family)]
        proved_ns = by_replicas(prepared, family)
        if varied and proved_ns > min(each.step_time_ns for each in varied):
            yield f"{family}: by replicas {proved_ns}"


def _varies(each: Evaluated, family: Family) -> bool:
    """Whether stages are those of a family but for the number of their replicas."""
    configs = {replace(place.config, data=1) for place in each.candidate.places}
    return configs == {family.config} and each.candidate.microbatch_size == family.microbatch_size


def halves_failures(seed: int) -> list[str]:
    """Bounds of split backwards above such a plan that fits, at the least limit of any plan and twice that."""
    rng, problem = Random(seed), replace(problem_of(seed), schedule="graph-zb", target="any")
    if seed % 2:  # a line, of which more is known
        size = rng.randint(4, 6)
        profile = profile_of(
            [rng.randint(100, 3000) for _ in range(size)], [(i, i + 1) for i in range(size - 1)],
            latency_ns=rng.choice((0, 300)), tensor_bytes=900, saved_bytes=rng.choice((4000, 40_000)),
            parameter_bytes=rng.choice((100, 2000)),
        )  # fmt: skip
        problem = replace(problem, profile=profile, num_devices=rng.choice((2, 3)))
    least = min((each.excess_bytes + 1 for each in _halved_plans(PreparedProblem(problem))), default=0)
    failures = []
    for limit in (least, 3 * least // 2, 2 * least):
        prepared = PreparedProblem(replace(problem, memory_limit_bytes=max(1, limit)))
        for each in _halved_plans(prepared):
            family = prepared.family_of.get(each.candidate)
            proved_ns = 0
            if each.fits and family:
                proved_ns = max(in_line_ns(prepared, family), prepared.free_bounds.held_ns(family))
            elif each.fits:
                one = Family(replace(each.candidate.places[0].config, data=1), each.candidate.microbatch_size)
                proved_ns = by_replicas(prepared, with_split_backward(one))
            if proved_ns > each.step_time_ns:
                failures.append(f"{seed}, {limit} bytes: {proved_ns} above {each}")
    return failures


def by_replicas(prepared: PreparedProblem, family: Family) -> int:
    """The highest bound of stages with replicas of their own number; that by filling is of whole backwards."""
    whole = 0 if prepared.cuts(family).splits_backward else by_replicas_ns(prepared, family)
    held_ns, even_ns = held_by_replicas_ns(prepared, family), prepared.free_bounds.even_by_replicas_ns(family) or 0
    return max(whole, held_ns, even_ns, in_lattice(prepared, family))


def in_lattice(prepared: PreparedProblem, family: Family) -> int:
    """What the lattice proves of stages with replicas of their own number, below a step that any plan keeps to."""
    if not prepared.free_bounds.is_bounded_exactly(family):
        return 0
    cuts = prepared.cuts(family)
    asked = cut_data(cuts, 0, binding=False), prepared.problem.num_devices, added_units(cuts)
    bound = ReplicasBound(*asked, sharded=family.config.zero > 0)
    return max((each.bound_ns for each in bound.rise(10**9)), default=0)


def _halved_plans(prepared: PreparedProblem) -> Iterator[Evaluated]:
    """Every cut of every family of one stage a place, and of replicas by stage, with split backwards."""
    for family in prepared.families.all:
        if family.chunks == 1:
            for partition in partitions(prepared.cuts(family)):
                yield from prepared.cuts(family).evaluate_under(partition, ("graph-zb",))
    for family in (
        prepared.families.single_replicas if allows_per_stage_replicas(prepared.problem, prepared.pinned) else ()
    ):
        for partition in partitions(prepared.cuts(family)):
            yield from by_stage(prepared.cuts(family), partition, ("graph-zb",))


def _of_search(limited: Problem, fitting: list[Evaluated]) -> Iterator[str]:
    outcome = PortfolioSearch(limited, None).run()
    best = min((each for each in fitting if outcome.pool.runs(each)), key=lambda each: each.sort_key, default=None)
    if fitting and outcome.impossible:
        yield f"called impossible, and {fitting[0].candidate} fits"
    if best and outcome.bound.ns is not None and outcome.bound.ns > best.step_time_ns:
        yield f"bound {outcome.bound.ns} above {best.step_time_ns}: {best.candidate}"
    if best and not outcome.pool.best_fits:
        yield f"nothing found that fits, and {best.candidate} does"


@pytest.mark.parametrize("start", range(0, 14, 7))
def test_no_bound_is_above_a_plan_that_fits_where_storages_are_shared(start: int) -> None:
    assert [line for seed in range(start, start + 7) for line in bound_failures(seed)] == []


@pytest.mark.parametrize("start", range(0, 12, 6))
def test_no_bound_of_halves_is_above_a_plan_in_halves_that_fits(start: int) -> None:
    assert [line for seed in range(start, start + 6) for line in halves_failures(seed)] == []


@pytest.mark.parametrize("seed", [1000, 1009])
def test_a_search_with_its_solver_proves_nothing_false_where_storages_are_shared(seed: int) -> None:
    assert bound_failures(seed, Effort(30.0, 0.05)) == []


def test_without_a_memory_limit_replicas_by_stage_are_bounded_by_their_work_alone() -> None:
    """Stages with replicas fill otherwise than a line of single devices: 90 / (1 - (15 / 16)^3) would be too much."""
    profile = profile_of([1000] * 30, [(i, i + 1) for i in range(29)], latency_ns=0, tensor_bytes=0, parameter_bytes=4)
    prepared = PreparedProblem(Problem(profile, None, 3, 16, 1, optimizer="none", target="any"))
    (family,) = prepared.families.single_replicas
    assert held_by_replicas_ns(prepared, family) == prepared.free_bounds.even_by_replicas_ns(family) == 16 * 90_000 // 3


def of_two_stages_on_three_devices(space: Space) -> SearchOutcome:
    """The first stage takes twice as long: 8 / 2 x 600 us is less than 8 x 900 us / 2."""
    profile = profile_of([200_000, 100_000], [(0, 1)], latency_ns=0, tensor_bytes=0, parameter_bytes=4)
    return PortfolioSearch(Problem(profile, None, 3, 8, 1, max_stages=2, space=space, effort=QUICK), None).run()


def test_replicas_by_stage_are_bounded_by_all_devices_however_few_stages_are_allowed() -> None:
    outcome = of_two_stages_on_three_devices(Space(chunks=1))
    best = outcome.pool.best
    assert [place.config.data for place in best.candidate.places] == [2, 1]
    assert outcome.bound.ns == 8 * 900_000 // 3 <= best.step_time_ns < 8 * 900_000 // 2


def test_replicas_by_stage_are_bounded_where_no_family_of_single_devices_is_allowed() -> None:
    assert of_two_stages_on_three_devices(Space(chunks=1, zero=1)).bound.ns == 8 * 900_000 // 3
