"""What plans promise on mixed clusters, beside brute force; `benchmarks.reliability` tries more of them.

Two or three devices of two types or speeds, a slow link somewhere: every partition, every choice of ranks for its
stages, with replicas alike or by stage, under every schedule of the scope, as a graph and as a line.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from random import Random

from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import OperatorTimes, Profile
from costmodel.stages.config import StageConfig
from planner.answer.decide import plan
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluator
from planner.graph.atoms import Atoms
from planner.question.problem import Problem
from planner.question.space import Space
from tests.properties.exact_promises import AUTO, COUNTED, numberings, random_model, slower, solved_here

MOST_CUTS = 80
"""Numbered partitions of a problem at most; one with more is drawn again, smaller."""
EQUAL, NEAR, NEAR_PART = 0.9, 1.01, 0.99
"""Part of the problems whose best step is that of brute force, and part of those in which it is so near to it."""


def failures(num_cases: int) -> list[str]:
    """Return a line for each bound above the best, and for too many steps above it."""
    pairs = [found_and_best(random_mixed(seed)) for seed in range(num_cases)]
    wrong = [
        f"seed {seed}: bound {bound} above the best, {best}"
        for seed, (_, best, bound) in enumerate(pairs)
        if bound is None or bound > best
    ]
    equal = sum(step <= best for step, best, _ in pairs) / num_cases
    near = sum(step <= best * NEAR for step, best, _ in pairs) / num_cases
    if equal < EQUAL or near < NEAR_PART:
        far = ", ".join(f"{i} ({step / best:.3f})" for i, (step, best, _) in enumerate(pairs) if step > best)
        wrong.append(f"{100 * equal:.1f} % are the best, {100 * near:.1f} % within 1 %; not seeds {far}")
    return wrong


def found_and_best(case: tuple[Problem, list[tuple[int, ...]]]) -> tuple[int, int, int | None]:
    """Return the best step of the search and of brute force, and the bound."""
    problem, cuts = case
    with solved_here():
        found = plan(problem).search
    return found.best_step_time_ns, min(every_step(problem, cuts)), found.lower_bound_ns


def random_mixed(seed: int) -> tuple[Problem, list[tuple[int, ...]]]:
    """Return a problem on unlike devices, and its numbered partitions."""
    rng, size = Random(f"mixed {seed}"), 5 + seed % 3
    while True:
        profile, joined = random_model(rng, size)
        cluster, others = _machines(rng, profile)
        data = rng.choice((1, 1, None))
        space = Space(data=data, chunks=1, zero=0, recompute="none")
        problem = Problem(
            profile, cluster, cluster.num_devices, 4, rng.choice((1, 2)), optimizer=rng.choice(("none", "adam")),
            space=space, target="any", effort=COUNTED, other_profiles=others,
        )  # fmt: skip
        cuts = list(numberings(problem, joined))
        if len(cuts) <= MOST_CUTS:
            return problem, cuts
        size -= 1


def _machines(rng: Random, profile: Profile) -> tuple[Cluster, tuple[Profile, ...]]:
    """Return two or three devices, of two types or speeds, in any order."""
    own, count = profile.device.name, rng.choice((2, 3))
    speeds: tuple[tuple[int, float], ...] = ()
    names = [own, "slow", rng.choice((own, "slow"))][:count]
    rng.shuffle(names)
    if rng.random() < 0.4:
        names = [own] * count
        speeds = ((rng.randrange(count), rng.choice((0.5, 0.7, 1.5))),)
    groups = (LinkGroup("all", 0, rng.choice((0.5, 3.0, 100.0)), rng.choice((0, 200, 3000))),)
    types = tuple(DeviceType(name, 2**40, "cpu") for name in dict.fromkeys(names))
    times = rng.choice((slower(profile), twice(profile)))
    other = replace(profile, device=replace(profile.device, name="slow"), times=times)
    cluster = Cluster(types, tuple(Host(name, 1) for name in names), groups, speeds)
    return cluster, (other,) if "slow" in names else ()


def twice(profile: Profile) -> tuple[OperatorTimes, ...]:
    """Return times of operators on a device half as fast."""
    return tuple(
        OperatorTimes(
            *(tuple(2 * ns for ns in row) for row in (t.forward_ns, t.backward_input_ns, t.backward_weight_ns)),
            t.spread,
        )
        for t in profile.times
    )


def every_step(problem: Problem, cuts: list[tuple[int, ...]]) -> Iterator[int]:
    """Yield the step of each partition, on all ranks that its stages may take."""
    pieces = Atoms(problem.profile.graph, tuple((i,) for i in range(len(problem.profile.graph.operators))))
    evaluator = Evaluator(problem, pieces, problem.microbatch_size or 1)
    for cut in cuts:
        for places in _placed(problem, max(cut) + 1):
            for schedule, line in product(AUTO, (False, True)):
                try:
                    yield evaluator.evaluate(
                        Candidate(cut, places, evaluator.microbatch_size, schedule, line)
                    ).step_time_ns
                except (UsageError, NoPlanFits):
                    continue


def _placed(problem: Problem, num_stages: int) -> Iterator[tuple[StagePlacement, ...]]:
    """Yield places of so many stages: replicas alike that divide the batch, or of any number where they may differ."""
    devices, free = problem.num_devices, problem.space.data is None
    for sizes in product(range(1, devices + 1) if free else (1,), repeat=num_stages):
        alike = len(set(sizes)) == 1
        if (
            sum(sizes) > devices
            or (alike and _leaves_over(problem, sizes[0]))
            or (not alike and problem.machines.speeds)
        ):
            continue
        for ranks in permutations(range(devices), sum(sizes)):
            starts = [sum(sizes[:stage]) for stage in range(num_stages)]
            rows = [ranks[start : start + size] for start, size in zip(starts, sizes, strict=True)]
            yield tuple(StagePlacement(StageConfig(data=len(row)), row) for row in rows)


def _leaves_over(problem: Problem, data: int) -> bool:
    """Whether so many replicas do not divide the micro-batches."""
    return problem.global_batch // (problem.microbatch_size or 1) % data != 0
