"""What bounds promise where stages differ, beside brute force; `benchmarks.reliability` tries more of them.

Eight atoms that mostly follow each other, two to four devices on hosts that a slow network may join, unlike devices
too, memory limits drawn from what plans hold. Brute force goes through cuts along the line with every number of
replicas a stage, and simulates some of them, each stage in one of three configurations, which differ in ZeRO or in what
runs again. No bound is above any of them that fits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, combinations, pairwise, product
from random import Random

from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.stages.config import StageConfig
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.graph.atoms import Atoms
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.loop import PortfolioSearch
from planner.search.proposers.balanced_sweep import FirstLook
from planner.search.proposers.provers import Bounds
from tests.properties.exact_promises import COUNTED, solved_here
from tests.properties.mixed_promises import twice
from tests.support.random_profiles import profile_of

NUM_ATOMS = 8
NUM_DRAWN = 200
"""Plans of a problem that are simulated."""
SCHEDULES = ("graph-1f1b", "graph-eager-1f1b")
SPACES = (
    Space(chunks=1, recompute="none", offload="none", tensor=1, context=1),
    Space(chunks=1, zero=0, offload="none", tensor=1, context=1),
    Space(chunks=1, zero=1, offload="none", tensor=1, context=1),
)


def failures(num_cases: int) -> list[str]:
    """Return a line for each bound above a plan that fits, and for each proof that none does."""
    return [f"seed {seed}: {each}" for seed in range(num_cases) if (each := wrong_claim(seed))]


def wrong_claim(seed: int) -> str:
    """Return what a search claims falsely of a problem; nothing where all is true."""
    drawn = DrawnPlans(seed)
    best = min((each.step_time_ns for each in drawn.fitting), default=None)
    with solved_here():
        found = PortfolioSearch(drawn.problem, None, (FirstLook, Bounds)).run()
    if best is None:
        return ""
    if found.impossible:
        return f"called impossible, one takes {best}"
    return f"bound {found.bound.ns} above {best}" if (found.bound.ns or 0) > best else ""


@dataclass(frozen=True)
class DrawnPlans:
    """A random problem, and plans of it in which stages differ."""

    seed: int

    @cached_property
    def _rng(self) -> Random:
        return Random(f"by stage {self.seed}")

    @cached_property
    def problem(self) -> Problem:
        """The problem, its limit one that some of the plans keep to."""
        peaks = sorted({each.excess_bytes + 1 for each in self._plans})
        part = self._rng.choice((None, 0.0, 0.05, 0.2))
        limit = None if part is None or not peaks else peaks[int(part * (len(peaks) - 1))]
        return replace(self._unlimited, memory_limit_bytes=limit)

    @property
    def fitting(self) -> list[Evaluated]:
        """The plans that keep to the limit."""
        limit = self.problem.memory_limit_bytes
        return [each for each in self._plans if limit is None or each.excess_bytes + 1 <= limit]

    @cached_property
    def _unlimited(self) -> Problem:
        """The problem, all of whose plans are over one byte, by what their worst rank peaks at."""
        rng = self._rng
        profile = _profile(rng)
        cluster, others = _machines(rng, profile)
        return Problem(
            profile, cluster, cluster.num_devices, rng.choice((4, 8, 12)), 1, memory_limit_bytes=1,
            optimizer=rng.choice(("none", "adam")), space=rng.choice(SPACES), target="any", effort=COUNTED,
            other_profiles=others,
        )  # fmt: skip

    @cached_property
    def _plans(self) -> list[Evaluated]:
        problem, rng = self._unlimited, self._rng
        evaluator = Evaluator(problem, Atoms(problem.profile.graph, tuple((i,) for i in range(NUM_ATOMS))), 1)
        candidates = [(stages, sizes) for stages, sizes in _every(problem.num_devices) if _divides(problem, sizes)]
        found = []
        for stages, sizes in rng.sample(candidates, min(NUM_DRAWN, len(candidates))):
            try:
                found.append(evaluator.evaluate(_candidate(rng, problem, stages, sizes)))
            except (UsageError, NoPlanFits):
                continue
        return found


def _every(devices: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield cuts along the line, by stage of each atom, each with every number of replicas a stage."""
    for num_stages in range(1, devices + 1):
        for begins in combinations(range(1, NUM_ATOMS), num_stages - 1):
            stages = tuple(sum(begin <= atom for begin in begins) for atom in range(NUM_ATOMS))
            for sizes in product(range(1, devices + 1), repeat=num_stages):
                if sum(sizes) <= devices:
                    yield stages, sizes


def _divides(problem: Problem, sizes: tuple[int, ...]) -> bool:
    """Whether replicas divide the batch where all stages have as many, as families have it."""
    return len(set(sizes)) > 1 or problem.global_batch % sizes[0] == 0


def _candidate(rng: Random, problem: Problem, stages: tuple[int, ...], sizes: tuple[int, ...]) -> Candidate:
    """Return a cut on ranks in a random order of the hosts', each stage in one of three configurations."""
    space = problem.space
    zeros = range(4) if space.zero is None else (space.zero,)
    known = list(product(zeros, ("none", "selective", "full") if space.recompute is None else (space.recompute,)))
    ways = rng.sample(known, 3)
    ranks = list(range(problem.num_devices))
    if rng.random() < 0.5:
        rng.shuffle(ranks)
    rows = [tuple(sorted(ranks[first:last])) for first, last in pairwise(accumulate(sizes, initial=0))]
    configs = [rng.choice(ways) for _ in rows]
    places = tuple(
        StagePlacement(StageConfig(data=len(row), zero=zero * (len(row) > 1), recompute=again), row)
        for row, (zero, again) in zip(rows, configs, strict=True)
    )
    return Candidate(stages, places, 1, rng.choice(SCHEDULES))


def _profile(rng: Random) -> Profile:
    """Return a line of operators, some of which are read further on, too."""
    edges = [(i, i + 1) for i in range(NUM_ATOMS - 1)]
    edges += [(i, j) for i in range(NUM_ATOMS) for j in range(i + 2, NUM_ATOMS) if rng.random() < 0.05]
    return profile_of(
        [rng.randint(100, 3000) for _ in range(NUM_ATOMS)], edges,
        whole=WholeModelMeasurements((1, 2, 4), accumulate_ns=rng.choice((0, 700)), optimizer_ns=rng.choice((0, 9000))),
        latency_ns=rng.choice((0, 300)), tensor_bytes=rng.choice((10, 900, 9000)),
        saved_bytes=rng.choice((500, 4000)), parameter_bytes=rng.choice((100, 2000, 20_000)),
    )  # fmt: skip


def _machines(rng: Random, profile: Profile) -> tuple[Cluster, tuple[Profile, ...]]:
    """Return hosts of one or two devices, of one type or two, that a fast or slow network joins."""
    own, (hosts, size) = profile.device.name, rng.choice(((2, 1), (3, 1), (4, 1), (2, 2), (2, 2)))
    names = [own, *rng.choices((own, own, "slow"), k=hosts - 1)]
    rng.shuffle(names)
    groups = (
        LinkGroup("host", size, 100.0, rng.choice((0, 200))),
        LinkGroup("network", 0, rng.choice((0.05, 0.5, 3.0, 100.0)), rng.choice((0, 200, 3000))),
    )[size == 1 :]
    types = tuple(DeviceType(name, 2**40, "cpu") for name in dict.fromkeys(names))
    other = replace(profile, device=replace(profile.device, name="slow"), times=twice(profile))
    cluster = Cluster(types, tuple(Host(name, size) for name in names), groups)
    return cluster, (other,) if "slow" in names else ()
