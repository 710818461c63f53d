"""`--exact` beside brute force on small random problems; `benchmarks.reliability` tries more of them.

The brute force numbers the stages of every operator in every legal way and simulates each choice of replicas, ZeRO,
recompute, micro-batch size and schedule; it shares no code with `planner.search`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import StringIO
from itertools import product
from json import loads
from random import Random
from typing import Any, Self

from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.machines.links import LinkClass, Links, SizeRange
from costmodel.model.graph import OperatorGraph
from costmodel.model.profile import OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.stages.config import StageConfig
from planner.answer.decide import plan
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.graph.atoms import Atoms
from planner.question.effort import Effort
from planner.question.pins import Group, Pins
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search import subsolver as ours
from planner.search.budget import Deadline
from planner.search.solvers.cpsat.child import Request
from planner.search.solvers.cpsat.model import Findings
from planner.search.solvers.cpsat.solver import Server
from planner.search.space.family_work import Families
from tests.support.random_profiles import profile_of, with_shared_storages

MOST_CUTS = 150
"""Numbered partitions of a problem that brute force goes through at most; one with more is drawn again, smaller."""
PATIENT = Effort(300.0)
HURRIED = Effort(0.5)
COUNTED = Effort(30.0, 0.05)
AUTO = ("graph-1f1b", "graph-eager-1f1b", "1f1b", "eager-1f1b")


def failures(num_cases: int) -> list[str]:
    """Return a line for each problem whose answer is not that of brute force."""
    found = []
    for seed in range(num_cases):
        case = random_case(seed)
        wrong = [*exact_failures(case), *hurried_failures(case), *(default_failures(case) if seed % 5 == 0 else ())]
        found += [f"seed {seed}: {text}" for text in wrong]
    return found


@dataclass(frozen=True)
class Case:
    """A problem, and the step of its best plan by brute force: None where no plan fits."""

    problem: Problem
    best_ns: int | None


def exact_failures(case: Case) -> list[str]:
    """Say where a proof with time enough differs from brute force."""
    with solved_here():
        try:
            found = plan(replace(case.problem, exact=True, effort=PATIENT)).search
        except NoPlanFits as error:
            proved = "proved for all" in str(error)
            return [] if case.best_ns is None and proved else [f"no plan, the best is {case.best_ns}: {error}"]
    told = (found.status, found.objective, found.best_step_time_ns, found.lower_bound_ns, found.limited_by)
    expected = ("optimal", case.best_ns, case.best_ns, case.best_ns, "proved")
    return [] if told == expected else [f"{told}, the best is {case.best_ns}"]


def hurried_failures(case: Case) -> list[str]:
    """Say where a proof that may not end claims too much."""
    return _claims(replace(case.problem, exact=True, effort=HURRIED), case.best_ns)


def default_failures(case: Case) -> list[str]:
    """Say where the search without a proof claims too much."""
    return _claims(replace(case.problem, effort=COUNTED), case.best_ns)


def _claims(problem: Problem, best_ns: int | None) -> list[str]:
    with solved_here():
        try:
            found = plan(problem).search
        except NoPlanFits as error:
            return [f"called impossible, the best is {best_ns}"] if best_ns and "proved for all" in str(error) else []
    if best_ns is None:
        return [] if not problem.exact else [f"{found.objective} where nothing fits"]
    if (found.lower_bound_ns or 0) > best_ns or (problem.exact and found.best_step_time_ns < best_ns):
        return [f"{found.best_step_time_ns} above {found.lower_bound_ns}, the best is {best_ns}"]
    return []


@contextmanager
def solved_here() -> Iterator[None]:
    """Let searches solve in this process: to start another takes longer than a problem."""
    real = ours.Solver
    ours.Solver = _Here  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        ours.Solver = real  # type: ignore[misc]


class _Here:
    pid: int | None = None  # of no process of its own

    def __init__(self) -> None:
        self._server, self.busy = Server(), False
        self._found: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        pass

    def ask(self, request: Request) -> None:
        stream = StringIO()
        self._server.serve(loads(request.to_json()), Findings(stream))
        self._found = list(map(loads, stream.getvalue().splitlines()))
        self.busy = True

    def received(self, _: float) -> list[dict[str, Any]]:
        self.busy, found, self._found = False, self._found, []
        return found

    def findings(self, request: Request, _: Deadline) -> Iterator[dict[str, Any]]:
        self.ask(request)
        yield from self.received(0.0)


def random_case(seed: int) -> Case:
    """Return a random problem, its memory limit drawn from what its plans hold."""
    problem, _, plans, limit = random_plans(seed)
    fitting = [each.step_time_ns for each in plans if limit is None or each.excess_bytes + 1 <= limit]
    return Case(replace(problem, memory_limit_bytes=limit), min(fitting, default=None))


def random_plans(seed: int) -> tuple[Problem, list[tuple[int, ...]], list[Evaluated], int | None]:
    """Return a random problem, its numbered partitions, every plan of them, and a memory limit."""
    rng, size = Random(f"exact {seed}"), 2 + seed % 8
    plans: list[Evaluated] = []
    while not plans:
        problem, cuts = random_problem(rng, size)
        if len(cuts) <= MOST_CUTS:
            plans = list(every_plan(problem, cuts))
        size = max(2, size - rng.choice((0, 0, 1)))
    peaks = sorted({each.excess_bytes + 1 for each in plans})
    limit = rng.choice((None, None, peaks[0], peaks[len(peaks) // 3], peaks[len(peaks) // 2], peaks[0] - 1))
    return problem, cuts, plans, limit


def random_problem(rng: Random, size: int) -> tuple[Problem, list[tuple[int, ...]]]:
    """Return a problem whose plans are all over one byte, by what their worst rank peaks at, and its partitions."""
    profile, joined = random_model(rng, size)
    together, apart = random_pins(rng, size)
    groups = [tuple(Group(row, "pins") for row in rows) for rows in (together, apart)]
    stages = rng.choice((None, None, None, None, None, None, None, 2))
    space = Space(data=rng.choice((1, 1, None, 2)), chunks=1, recompute=rng.choice(("none", None)), stages=stages)
    num_devices = rng.randint(max(2, (space.data or 1) * (stages or 1)), 6)
    cluster, others = random_machines(rng, profile, num_devices)
    problem = Problem(
        profile, cluster, num_devices, rng.choice((4, 8, 12)), rng.choice((1, 2, None)),
        schedule=rng.choice(("auto", "auto", "auto", "1f1b", "graph-1f1b", "gpipe")), memory_limit_bytes=1,
        optimizer=rng.choice(("none", "adam")), max_stages=rng.randint(2, 4), space=space,
        pins=Pins(*groups) if together or apart else None, target=rng.choice(("", "", "any")),
        other_profiles=others,
    )  # fmt: skip
    joined += [{int(name[2:]) for name in row} for row in together]
    return problem, list(numberings(problem, joined))


def random_machines(rng: Random, profile: Profile, num_devices: int) -> tuple[Cluster | None, tuple[Profile, ...]]:
    """Return no cluster, or hosts of two devices, of one type or two, links measured or given, some ranks slower."""
    if rng.random() < 0.8:
        return None, ()
    names = [profile.device.name, rng.choice((profile.device.name, "slow"))]
    others = [profile] if names[1] == "slow" and num_devices > 4 else []
    speeds = tuple((rank, rng.choice((0.5, 0.9, 1.3))) for rank in range(6) if rng.random() < 0.2)
    groups = tuple(
        LinkGroup(name, size, rng.choice((0.5, 3.0, 100.0)), rng.choice((0, 200, 3000)))
        for name, size in (("host", 2), ("network", 0))
    )
    types = tuple(DeviceType(name, 2**40, "cpu") for name in dict.fromkeys(names))
    links = random_links(rng) if rng.random() < 0.7 else None
    cluster = Cluster(types, (Host(names[0], 2, 2), Host(names[1], 2)), groups, speeds, links)
    return cluster, tuple(
        replace(each, device=replace(each.device, name="slow"), times=slower(each)) for each in others
    )


def slower(profile: Profile) -> tuple[OperatorTimes, ...]:
    """Return times of operators on a device that is slow for some of them and quick for others."""
    factors = [1 + position % 3 for position in range(len(profile.times))]
    return tuple(
        OperatorTimes(
            *(
                tuple(factor * ns // 2 for ns in row)
                for row in (t.forward_ns, t.backward_input_ns, t.backward_weight_ns)
            ),
            t.spread,
        )
        for t, factor in zip(profile.times, factors, strict=True)
    )


def random_links(rng: Random) -> Links:
    """Return measured links whose larger messages may be the quicker ones."""
    starts = (0, 500, 4000)
    classes = {
        name: LinkClass(tuple(SizeRange(b, rng.randint(0, 2000), rng.choice((0.3, 2.0, 1e6))) for b in starts))
        for name in ("p2p", "p2p_host")[: rng.randint(1, 2)]
    }
    return Links("gloo", "cpu", 2, classes)


def random_model(rng: Random, size: int) -> tuple[Profile, list[set[int]]]:
    """Return a graph with all that real ones have, and operators that change a value in place with its producers."""
    density = rng.choice((0.2, 0.4, 0.7))
    edges = [(a, b) for b in range(size) for a in range(b) if rng.random() < density or (a == b - 1 and density > 0.5)]
    frozen = frozenset(range(rng.choice((0, 0, 0, 1, 2)))) & frozenset(range(size - 1))
    profile = profile_of(
        [rng.randint(100, 3000) for _ in range(size)], edges, frozen=frozen,
        whole=WholeModelMeasurements((1, 2, 4), accumulate_ns=rng.choice((0, 700)), optimizer_ns=rng.choice((0, 5000))),
        latency_ns=rng.choice((0, 300, 2000)), tensor_bytes=rng.choice((10, 900, 9000)),
        saved_bytes=rng.choice((500, 4000)), parameter_bytes=rng.choice((100, 2000, 20_000)),
        host_ns=rng.choice((0, 0, 200, 900)), tied=[(0, size - 1)] if size > 2 and rng.random() < 0.2 else [],
    )  # fmt: skip
    if rng.random() < 0.7:
        profile = with_shared_storages(rng, profile)
    return changed_in_place(rng, profile)


def changed_in_place(rng: Random, profile: Profile) -> tuple[Profile, list[set[int]]]:
    """Let some operators that read one tensor alone change it in place."""
    graph, joined = profile.graph, []
    for position, operator in enumerate(graph.operators):
        read = [tensor for tensor in graph.tensors if operator.name in tensor.consumers]
        if len(read) == 1 and rng.random() < 0.1:
            joined.append({position, graph.index[read[0].producer]})
            operators = list(graph.operators)
            operators[position] = replace(operator, in_place=True)
            tensors = [replace(t, storage=read[0].storage) if t.producer == operator.name else t for t in graph.tensors]
            graph = replace(graph, operators=tuple(operators), tensors=tuple(tensors))
    return replace(profile, graph=graph), joined


def random_pins(rng: Random, size: int) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return names of operators to keep together, or apart."""
    names = [f"op{i}" for i in range(size)]
    kind = rng.choice(("none", "none", "together", "apart"))
    pairs = [tuple(rng.sample(names, 2)) for _ in range(rng.randint(1, 2))]
    return (pairs, []) if kind == "together" else ([], pairs) if kind == "apart" else ([], [])


def numberings(problem: Problem, joined: list[set[int]], chunks: int = 1) -> Iterator[tuple[int, ...]]:
    """Yield the stage of each operator in every partition, numbered in every topological order of its stages."""
    graph, most = problem.profile.graph, min(problem.max_stages or 99, problem.num_devices * chunks)
    before: Mapping[int, list[int]] = {i: [] for i in range(len(graph.operators))}
    for tensor in graph.tensors:
        for name in tensor.consumers:
            before[graph.index[name]].append(graph.index[tensor.producer])
    found: list[tuple[int, ...]] = [()]
    for position in range(len(graph.operators)):
        least = [max((row[i] for i in before[position]), default=0) for row in found]
        found = [(*row, stage) for row, low in zip(found, least, strict=True) for stage in range(low, most)]
        found = [row for row in found if _keeps(graph, problem.pins, joined, row)]
    fixed = problem.space.stages
    yield from (row for row in found if set(row) == set(range(max(row) + 1)) and fixed in (None, max(row) + 1))


def _keeps(graph: OperatorGraph, pins: Pins | None, joined: list[set[int]], row: tuple[int, ...]) -> bool:
    """Whether the first operators keep to what must share a stage and what must not."""
    known = range(len(row))
    whole = all(len({row[i] for i in group if i in known}) < 2 for group in joined)
    parted = (tuple(graph.index[name] for name in group.patterns) for group in (pins.apart if pins else ()))
    return whole and all(a not in known or b not in known or row[a] != row[b] for a, b in parted)


def _ways(problem: Problem, num_stages: int) -> Iterator[tuple[StageConfig, int]]:
    """Yield every configuration of so many stages with each micro-batch size that it admits."""
    space, batch = problem.space, problem.global_batch
    executor = problem.target == "" and problem.profile.origin.plan_only == ""
    for data in (space.data,) if space.data else range(1, problem.num_devices + 1):
        if batch % data or data * num_stages > problem.num_devices:
            continue
        for zero in range(1 if data == 1 else 2 if executor else 4):
            for recompute in (space.recompute,) if space.recompute else ("none", "selective", "full"):
                if executor and recompute == "selective":
                    continue
                for size in (problem.microbatch_size,) if problem.microbatch_size else range(1, 5):
                    if batch // data % size == 0:
                        yield StageConfig(data=data, zero=zero, recompute=recompute), size


def _may_stand_inside(problem: Problem, orders: Sequence[Sequence[int]]) -> bool:
    """Whether a replica's stages may stand side by side, too: where links join some of the devices, all of one kind."""
    joined = any(1 < link.group < problem.num_devices for link in problem.machines.groups)
    return joined and len(orders) == 1 and not (problem.pins and problem.pins.stages)


def every_plan(problem: Problem, cuts: list[tuple[int, ...]]) -> Iterator[Evaluated]:
    """Simulate numbered partitions in every way that the problem leaves open, as graphs and as lines."""
    pieces = Atoms(problem.profile.graph, tuple((i,) for i in range(len(problem.profile.graph.operators))))
    free, orders = replace(problem, pins=None), Families(problem).device_permutations
    evaluators = {size: Evaluator(free, pieces, size) for size in range(1, 5)}
    for cut in cuts:
        num_stages = max(cut) + 1
        for config, size in _ways(problem, num_stages):
            names = AUTO if problem.schedule == "auto" else (problem.schedule,)
            for order, inside in product(orders, (False, True) if _may_stand_inside(problem, orders) else (False,)):
                copy, stage = (num_stages, 1) if inside else (1, config.data)
                rows = ([order[d * copy + s * stage] for d in range(config.data)] for s in range(num_stages))
                places = tuple(StagePlacement(config, tuple(row)) for row in rows)
                for schedule, line in product(names, (False, True)):
                    try:
                        yield evaluators[size].evaluate(Candidate(cut, places, size, schedule, line))
                    except (UsageError, NoPlanFits):
                        continue
