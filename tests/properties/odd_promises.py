"""What the search promises of small problems of odd kinds, beside brute force; `benchmarks.reliability` tries more.

Two to four devices, unlike ones too, hosts with and without memory, frozen first parts, tensors and parameters of no
bytes, memory limits that little keeps to. No answer ends in an error, no bound is above the best of brute force, and
nearly every answer is that best. Brute force simulates every numbered partition, on all ranks that its stages may take,
alike or with replicas of their own number, in up to three ways to run each stage, under every schedule of the scope.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product
from random import Random

from costmodel.errors import LimitReached, NoPlanFits, PenstockError, UsageError
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.stages.config import StageConfig
from planner.answer.decide import plan
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.graph.atoms import Atoms
from planner.question.problem import Problem
from planner.question.space import Space
from tests.properties.exact_promises import AUTO, COUNTED, numberings, slower, solved_here
from tests.properties.mixed_promises import twice
from tests.support.random_profiles import profile_of

MOST_PLANS = 4_000
"""Plans of a problem that brute force simulates at most; one with more is drawn again, smaller."""
EQUAL_PART = 0.97
"""Part of the answers that are to be as quick as the best of brute force."""
LOOPED = ("interleaved-1f1b", "looped-bfs")
"""Schedules of two stages a device that brute force tries."""


@dataclass(frozen=True)
class Odd:
    """A problem, and the least step of brute force: None where no plan of it fits."""

    problem: Problem
    best_ns: int | None


def failures(num_cases: int) -> list[str]:
    """Return a line for each error and false claim, and one if too few answers are the best."""
    rows = [(seed, ratio_or_claim(odd_case(seed))) for seed in range(num_cases)]
    found = [f"seed {seed}: {each}" for seed, each in rows if isinstance(each, str)]
    above = [f"{ratio:.4f} (seed {seed})" for seed, ratio in rows if isinstance(ratio, float) and ratio > 1]
    if len(above) > (1 - EQUAL_PART) * sum(isinstance(each, float) for _, each in rows):
        found.append(f"{len(above)} answers are slower than the best: {', '.join(above)}")
    return found


def ratio_or_claim(case: Odd) -> float | str | None:
    """Return the best step of the search over that of brute force, or what is wrong; None where nothing fits."""
    with solved_here():
        try:
            found = plan(case.problem)
        except (NoPlanFits, LimitReached) as error:
            return None if case.best_ns is None else f"no plan, the best is {case.best_ns}: {error}"
        except PenstockError as error:
            return f"{type(error).__name__}: {error}"
    search = found.search
    if "bug" in search.limited_by or "bugs" in found.extra:
        return f"{search.limited_by}, {found.extra.get('bugs')}"
    if case.best_ns is None:
        return None  # split backwards may hold less
    if (search.lower_bound_ns or 0) > case.best_ns:
        return f"bound {search.lower_bound_ns} above the best, {case.best_ns}"
    return search.best_step_time_ns / case.best_ns if case.best_ns else 1.0


def odd_case(seed: int) -> Odd:
    """Return a random problem, its memory limit drawn from what its plans hold."""
    rng, size, plans = Random(f"odd {seed}"), 3 + seed % 6, list[Evaluated]()
    while not plans:
        problem = _problem(rng, size)
        candidates = list(_every(problem))
        if len(candidates) <= MOST_PLANS:
            plans = list(_simulated(problem, candidates))
        size = max(2, size - rng.choice((0, 1)))
    peaks = sorted({each.excess_bytes + 1 for each in plans})
    limit = rng.choice((None, None, peaks[0], peaks[len(peaks) // 4], peaks[len(peaks) // 2], max(1, peaks[0] - 1)))
    fitting = [each.step_time_ns for each in plans if limit is None or each.excess_bytes + 1 <= limit]
    return Odd(replace(problem, memory_limit_bytes=limit), min(fitting, default=None))


def _problem(rng: Random, size: int) -> Problem:
    """Return a problem whose plans are all over one byte, by what their worst rank peaks at."""
    profile, (batch, microbatch_size) = _profile(rng, size), rng.choice(((2, 1), (4, 1), (4, 2), (6, 1)))
    (cluster, others), space = _machines(rng, profile), _space(rng)
    schedule = rng.choice(("auto", "auto", "graph-1f1b", "gpipe")) if space.chunks == 1 else "auto"
    return Problem(
        profile, cluster, cluster.num_devices, batch, microbatch_size, schedule, memory_limit_bytes=1, space=space,
        optimizer=rng.choice(("none", "adam", "adam")), target="any", effort=COUNTED, other_profiles=others,
    )  # fmt: skip


def _profile(rng: Random, size: int) -> Profile:
    """Return a random graph, some of whose first operators may be frozen, and whose tensors may have no bytes."""
    density = rng.choice((0.2, 0.4, 0.7))
    edges = [(a, b) for b in range(size) for a in range(b) if a == b - 1 or rng.random() < density]
    if rng.random() < 0.5:
        edges = [(a, b) for a, b in edges if a != b - 1 or rng.random() < 0.6]
    return profile_of(
        [rng.randint(100, 3000) for _ in range(size)], edges, frozen=frozenset(range(rng.choice((0, 0, 1, size // 2)))),
        whole=WholeModelMeasurements((1, 2, 4), accumulate_ns=rng.choice((0, 700)), optimizer_ns=rng.choice((0, 5000))),
        latency_ns=rng.choice((0, 300, 2000)), tensor_bytes=rng.choice((0, 10, 9000)),
        saved_bytes=rng.choice((0, 500, 4000)), parameter_bytes=rng.choice((0, 2000, 20_000)),
        host_ns=rng.choice((0, 0, 200)),
    )  # fmt: skip


def _machines(rng: Random, profile: Profile) -> tuple[Cluster, tuple[Profile, ...]]:
    """Return two to four devices, of two types or speeds, in any order, on hosts with and without memory."""
    own, count = profile.device.name, rng.choice((2, 3, 3, 4))
    speeds: tuple[tuple[int, float], ...] = ()
    kind = rng.choice(("alike", "types", "speeds"))
    names = [own] * count
    if kind == "types":
        names = [own, "slow", *rng.choices((own, "slow"), k=2)][:count]
        rng.shuffle(names)
    if kind == "speeds":
        speeds = tuple((rank, rng.choice((0.5, 0.7, 1.5))) for rank in range(count) if rng.random() < 0.4)
    groups = (LinkGroup("all", 0, rng.choice((0.5, 3.0, 100.0)), rng.choice((0, 200, 3000))),)
    types = tuple(DeviceType(name, 2**40, "cpu") for name in dict.fromkeys(names))
    memory = rng.choice((0, 0, 2_000, 50_000, 2**30))
    other = replace(profile, device=replace(profile.device, name="slow"), times=rng.choice((slower, twice))(profile))
    cluster = Cluster(types, tuple(Host(name, 1, memory_bytes=memory) for name in names), groups, speeds)
    return cluster, (other,) if "slow" in names else ()


def _space(rng: Random) -> Space:
    """Return a space in which at most one choice within stages is open."""
    plain = {"zero": 0, "recompute": "none", "offload": "none"}
    opened = rng.choice((None, "zero", "recompute", "offload", "offload"))
    fixed = {name: value for name, value in plain.items() if name != opened}
    if opened == "offload" and rng.random() < 0.3:
        del fixed["zero"]
    return Space(data=rng.choice((1, None, None, 2)), chunks=rng.choice((1, 1, 1, 2)), **fixed)  # type: ignore[arg-type]


def _every(problem: Problem) -> Iterator[Candidate]:
    """Yield every partition on all ranks that its stages may take, in every way that the problem leaves open."""
    chunks, size = problem.space.chunks or 1, problem.microbatch_size or 1
    names = LOOPED if chunks > 1 else (*AUTO, "gpipe") if problem.schedule == "auto" else (problem.schedule,)
    for cut in numberings(problem, [], chunks):
        num_stages = max(cut) + 1
        if num_stages % chunks == 0 and (chunks == 1 or num_stages > chunks):  # a loop of one place serves nothing
            for places in _placed(problem, num_stages // chunks):
                for schedule, line in product(names, (False, True)):
                    yield Candidate(cut, places * chunks, size, schedule, line)


def _simulated(problem: Problem, candidates: list[Candidate]) -> Iterator[Evaluated]:
    """Simulate candidates; those that cannot be priced or ordered are left out."""
    pieces = Atoms(problem.profile.graph, tuple((i,) for i in range(len(problem.profile.graph.operators))))
    evaluator = Evaluator(problem, pieces, problem.microbatch_size or 1)
    for candidate in candidates:
        try:
            yield evaluator.evaluate(candidate)
        except (UsageError, NoPlanFits):
            continue


def _placed(problem: Problem, num_places: int) -> Iterator[tuple[StagePlacement, ...]]:
    """Yield places: replicas alike that divide the batch, or, one stage a place, of any number where that is open."""
    devices, data = problem.num_devices, problem.space.data
    whole = problem.global_batch // (problem.microbatch_size or 1)
    for sizes in product((data,) if data else range(1, devices + 1), repeat=num_places):
        alike = len(set(sizes)) == 1
        if sum(sizes) > devices or max(sizes) > whole or (alike and whole % sizes[0]):
            continue
        if not alike and (problem.space.chunks != 1 or problem.schedule == "gpipe"):
            continue
        ends = [sum(sizes[: place + 1]) for place in range(num_places)]
        for ranks in permutations(range(devices), sum(sizes)):
            rows = [ranks[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            if all(row == tuple(sorted(row)) for row in rows):
                for config in _configs(problem, several=max(sizes) > 1):
                    yield tuple(StagePlacement(replace(config, data=len(row)), row) for row in rows)


def _configs(problem: Problem, *, several: bool) -> Iterator[StageConfig]:
    """Yield the ways to run stages that a problem leaves open, the same for each stage."""
    space, hosts = problem.space, any(host.memory_bytes for host in problem.machines.hosts)
    zeros = [zero for zero in range(4) if space.allows("zero", zero) and (several or zero == 0)]
    offloads = ("none", "activations", "optimizer", "parameters") if hosts else ("none",)
    for zero, recompute, offload in product(zeros, ("none", "selective", "full"), offloads):
        if space.allows("recompute", recompute) and space.allows("offload", offload):
            yield StageConfig(zero=zero, recompute=recompute, offload=offload)
