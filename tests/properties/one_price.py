"""One price: a candidate priced, simulated and written is the same plan by whatever entry it comes.

Candidates are random partitions of made-up models (tied weights, shared storages, frozen parts, host time; small
described ones where degrees divide operators) on clusters with mixed devices and hosts.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from costmodel.errors import PenstockError
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import GIB, DeviceType, Host, LinkGroup
from costmodel.machines.collectives import all_reduce_ns
from costmodel.model.graph import Operator, OperatorGraph, Tensor
from costmodel.model.profile import Device, Profile
from costmodel.model.whole_model import SplitRatios, WholeModelMeasurements
from costmodel.roofline import OPTIMIZERS
from costmodel.stages.config import StageConfig
from planner.answer.decide import plan
from planner.candidate.candidate import Candidate, StagePlacement, alike, in_loop
from planner.candidate.evaluate import Evaluator
from planner.candidate.make import make
from planner.graph.atoms import Atoms, Partition, numbered, prepare
from planner.plan import Plan, PlanEdge, SearchResult
from planner.plan.replay import replay
from planner.question.effort import Effort
from planner.question.pins import Group, Pins, StagePin
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.space.family import Family
from planner.search.state.prepared import PreparedProblem
from tests.support.described_models import described
from tests.support.random_profiles import random_profile, with_shared_storages

QUICK = Effort(60.0, 0.0)
"""A search without the solver."""


def random_model(rng: Random) -> Profile:
    """A made-up or a small described model."""
    if rng.random() < 0.3:
        return described(rng.choice(("gpt2", "llama")))
    size = rng.randint(3, 9)
    split = rng.choice(((), (SplitRatios(1.1, 1.2),) * 3))
    whole = WholeModelMeasurements((1, 2, 4), 0, rng.choice((0, 700)), rng.choice((0, 5000)), split)
    profile = random_profile(
        rng, size, whole=whole, tied=[(0, size - 1)] if rng.random() < 0.5 else [], host_ns=rng.choice((0, 200)),
        frozen=frozenset({0}) if rng.random() < 0.2 else frozenset(),
    )  # fmt: skip
    return with_shared_storages(rng, profile)


def random_problem(rng: Random) -> Problem:
    """A free problem on two to four devices: as profiled, or on hosts of two types with a network between."""
    profile = random_model(rng)
    num_devices = rng.choice((2, 3, 4))
    batch, optimizer = rng.choice((4, 8, 12)), rng.choice(("none", "sgd", "adam"))
    mixed = rng.random() < 0.4
    others = (slower(profile),) if mixed and num_devices > 2 and not profile.device.catalogue else ()
    return Problem(
        profile, hosts(profile) if mixed else None, num_devices, batch, optimizer=optimizer, target="any",
        other_profiles=others, trainer=rng.choice(("", "executor", "megatron")), effort=QUICK,
    )  # fmt: skip


def slower(profile: Profile) -> Profile:
    """The same model on a device of half the speed."""
    times = tuple(
        replace(each, **{part: tuple(2 * ns for ns in getattr(each, part))
                         for part in ("forward_ns", "backward_input_ns", "backward_weight_ns")})
        for each in profile.times
    )  # fmt: skip
    return replace(profile, device=Device("cpu", "slow", 2**40), times=times)


def hosts(profile: Profile) -> Cluster:
    """Two hosts with two devices each, the first of the type that was profiled."""
    known = profile.device
    first = DeviceType(known.name, known.memory_bytes, known.type, known.catalogue)
    second = DeviceType("A100", 80 * GIB, "cuda", "a100-sxm-80") if known.catalogue else DeviceType("slow", GIB, "cpu")
    links = (LinkGroup("host", 2, 100.0, 500), LinkGroup("network", 0, 10.0, 5000))
    return Cluster((first, second), (Host(first.name, 2), Host(second.name, 2)), links)


def random_candidate(rng: Random, problem: Problem, atoms: Atoms) -> Candidate:
    """Places alike in a loop, or each stage on ranks and configured as it likes."""
    divides = all(operator.work for operator in problem.profile.graph.operators)
    size = rng.choice([size for size in problem.microbatch_sizes if problem.global_batch % size == 0])
    uniform = rng.random() < 0.5
    plain = rng.random() < 0.3
    config = StageConfig() if plain else _config(rng, problem.num_devices, divides)
    most = problem.num_devices // (config.data * config.tensor)
    num_places = rng.randint(1, most)
    chunks = rng.choice((1, 1, 2)) if num_places > 1 else 1
    partition = _partition(rng, atoms, num_places * chunks)
    num_stages = max(partition) + 1
    if uniform and num_stages == num_places * chunks:
        schedule = rng.choice(("interleaved-1f1b", "looped-bfs")) if chunks > 1 else rng.choice(SCHEDULES)
        return Candidate(partition, in_loop(config, num_stages, num_places), size, schedule)
    places, free = [], list(range(problem.num_devices))
    for _ in range(num_stages):
        own = StageConfig() if plain else _config(rng, max(1, len(free) - num_stages + len(places) + 1), divides)
        ranks, free = tuple(free[: own.data * own.tensor]), free[own.data * own.tensor :]
        places.append(StagePlacement(own, ranks or (0,), 1 if plain else rng.choice((1, 1, 2))))
    return Candidate(partition, tuple(places), size, rng.choice(("graph-1f1b", "graph-eager-1f1b", "graph-kfkb")))


SCHEDULES = ("graph-1f1b", "graph-eager-1f1b", "1f1b", "eager-1f1b", "gpipe", "zb-h1")


def _config(rng: Random, most: int, divides: bool) -> StageConfig:
    tensor = rng.choice((1, 2)) if divides and most > 1 else 1
    data = rng.randint(1, most // tensor)
    zero = rng.choice((0, 1, 2, 3)) if data > 1 else 0
    return StageConfig(data=data, tensor=tensor, zero=zero, recompute=rng.choice(("none", "none", "selective", "full")))


def _partition(rng: Random, atoms: Atoms, num_stages: int) -> Partition:
    """Runs of the atoms' order, or where that works out any groups."""
    num_stages = min(num_stages, len(atoms))
    groups = numbered(atoms, [rng.randrange(num_stages) for _ in range(len(atoms))])
    if groups and max(groups) + 1 == num_stages:
        return groups
    starts = sorted(rng.sample(range(1, len(atoms)), num_stages - 1))
    return tuple(sum(start <= atom for start in starts) for atom in range(len(atoms)))


def candidate_failures(seed: int) -> list[str]:
    """What differs between the entries for one random candidate; nothing where it cannot be run."""
    rng = Random(seed)
    problem = random_problem(rng)
    atoms = prepare(problem.profile.graph)
    candidate = random_candidate(rng, problem, atoms)
    evaluator = Evaluator(problem, atoms, candidate.microbatch_size)
    try:
        found = made(evaluator, candidate)
    except PenstockError:
        return []  # a schedule that does not run on such places, or replicas that the micro-batches do not fill
    entries = {"as pins": by_pins(problem, found)}
    loop = num_places(found)
    looped = candidate.places == tuple(candidate.places[i % loop] for i in range(candidate.num_stages))
    even = problem.global_batch % (candidate.microbatch_size * candidate.places[0].config.data) == 0
    if alike(candidate.places) and looped and even and candidate.num_stages % loop == 0:
        fixed = as_flags(problem, found)
        family = Family(candidate.places[0].config, candidate.microbatch_size, fixed.space.chunks or 1)
        cuts = PreparedProblem(fixed).cuts(family)
        entries["as flags"] = made(cuts.evaluator, cuts.candidate(candidate.partition, candidate.schedule, line=False))
    failures = [f"{name}: {line}" for name, other in entries.items() for line in differences(found, other)]
    failures += [f"by hand: {line}" for line in by_hand(evaluator, candidate, found)]
    if replay(found).step_time_ns != found.prediction.step_time_ns:
        failures.append(f"replayed in {replay(found).step_time_ns}, not {found.prediction.step_time_ns}")
    return [f"{seed}, {line}" for line in failures]


def search_failures(seed: int) -> list[str]:
    """What differs when the plan of a free search is given back as pins, and by how much flags make it slower."""
    problem = random_problem(Random(seed))
    found = plan(problem)
    failures = [f"as pins: {line}" for line in differences(found, by_pins(problem, found))]
    if len({(stage.config, stage.microbatch_multiple) for stage in found.stages}) == 1:
        again = plan(as_flags(problem, found))
        if again.search.best_step_time_ns > found.search.objective:
            failures.append(f"as flags: {again.search.best_step_time_ns} ns, not {found.search.objective}")
    return [f"{seed}, {line}" for line in failures]


def made(evaluator: Evaluator, candidate: Candidate) -> Plan:
    """The plan of a candidate, whoever found it."""
    step_ns = evaluator.evaluate(candidate).step_time_ns
    return make(evaluator, candidate, SearchResult("heuristic", step_ns, None, ""), "")


def by_pins(problem: Problem, found: Plan) -> Plan:
    """The same stages pinned one by one."""
    pins = Pins(
        stages=tuple(
            StagePin(Group(stage.operators, "pins"), stage.ranks, stage.config, stage.microbatch_multiple, number)
            for stage, number in zip(found.stages, found.in_flight or [0] * len(found.stages), strict=True)
        )
    )
    size, planner = found.batch.microbatch_size, "chain" if relays(problem, found) else "ours"
    return plan(replace(problem, pins=pins, schedule=found.schedule, microbatch_size=size, planner=planner))


def relays(problem: Problem, found: Plan) -> bool:
    """Whether a stage sends on what it received."""
    stage_of = {name: i for i, stage in enumerate(found.stages) for name in stage.operators}
    producer = {tensor.name: stage_of[tensor.producer] for tensor in problem.profile.graph.tensors}
    return any(producer[name] != edge.source for edge in found.edges for name in edge.tensors)


def num_places(found: Plan) -> int:
    return len({stage.ranks for stage in found.stages})


def as_flags(problem: Problem, found: Plan) -> Problem:
    """The same problem with every choice fixed that a plan of stages alike made."""
    config, places = found.stages[0].config, num_places(found)
    space = Space(
        places, len(found.stages) // places, config.data, config.tensor, config.sequence > 1, config.context,
        config.expert, config.zero if config.data * config.context > 1 else None, config.recompute, config.offload,
        expert_tensor=config.expert_tensor if config.expert_tensor != config.tensor else None,
    )  # fmt: skip
    planner = "chain" if relays(problem, found) else "ours"
    size = found.batch.microbatch_size
    return replace(problem, space=space, schedule=found.schedule, microbatch_size=size, planner=planner)


def differences(one: Plan, other: Plan) -> list[str]:
    """Lines on what two plans that should be one price differently, or do differently."""
    parts = ("schedule", "batch", "stages", "edges", "orders", "prediction", "assumptions", "runs_on")
    lines = []
    for part in parts:
        mine, theirs = getattr(one, part), getattr(other, part)
        if mine != theirs:
            pairs = zip(mine, theirs, strict=False) if isinstance(mine, tuple) else [(mine, theirs)]
            lines.append(f"{part}: {next(((a, b) for a, b in pairs if a != b), (mine, theirs))}")
    return lines


def by_hand(evaluator: Evaluator, candidate: Candidate, found: Plan) -> list[str]:
    """Lines on how the price of plain stages of single devices differs from sums over their operators."""
    problem, plain = evaluator.problem, {StagePlacement(StageConfig(), place.ranks) for place in candidate.places}
    devices = {problem.device_names[rank] for place in candidate.places for rank in place.ranks}
    as_profiled = problem.trainer_name == "executor" and not problem.profile.device.catalogue
    if set(candidate.places) != plain or len(devices) > 1 or not as_profiled or candidate.schedule == "zb-h1":
        return []
    if devices != {problem.profile.device.name} or candidate.microbatch_size not in problem.profile.microbatch_sizes:
        return []
    hand = [stage_by_hand(evaluator, found, index) for index in range(len(found.stages))]
    return [
        f"stage {i} {part}: {getattr(stage.cost, part)}, by hand {value}"
        for i, stage in enumerate(found.stages)
        for part, value in hand[i].items()
        if getattr(stage.cost, part) != value
    ]


def stage_by_hand(evaluator: Evaluator, found: Plan, index: int) -> dict[str, object]:
    """Sums over a stage's operators; each storage, parameter and message once; tied parameters summed together."""
    problem, stage = evaluator.problem, found.stages[index]
    profile, size = problem.profile, found.batch.microbatch_size
    graph, at = profile.graph, profile.microbatch_sizes.index(size)
    operators = [graph.operators[graph.index[name]] for name in stage.operators]
    times = [profile.times_of[name] for name in stage.operators]
    sends = [edge for edge in found.edges if index in (edge.source, edge.target)]
    away = [edge for edge in sends if found.stages[edge.source].ranks != found.stages[edge.target].ranks]
    host = [(problem.machines.host_ns(0, 1, edge.size_bytes), edge) for edge in away]
    returned = {edge: sum(t.size_bytes[at] for t in _of(graph.tensors, edge) if t.gradient) for _, edge in host}
    back = [(problem.machines.host_ns(0, 1, returned[edge]), edge) for _, edge in host if edge.gradient]
    whole = {storage: max(t.size_bytes[at] for t in graph.tensors if t.storage == storage)
             for storage in {t.storage for t in graph.tensors}}  # fmt: skip
    kept = {s.storage: max(s.size_bytes * size, whole.get(s.storage, 0)) for o in graph.operators for s in o.saved}
    own = {s.storage for o in operators for s in o.saved}
    arrived: dict[int, int] = {}
    for tensor in {t for edge in sends if edge.target == index for t in _of(graph.tensors, edge)}:
        arrived[tensor.storage] = arrived.get(tensor.storage, 0) + tensor.size_bytes[at]
    names = {name for o in operators for name in o.parameters}
    held = sum(p.size_bytes for p in graph.parameters if p.name in names)
    total = sum(p.size_bytes for p in graph.parameters)
    added = round(profile.whole.accumulate_ns * held / total) if found.batch.num_microbatches > 1 else 0
    reduce_ns = 0
    for name in names:
        readers = {i for i, s in enumerate(found.stages) for o in s.operators if name in _operator(graph, o).parameters}
        ranks = tuple(sorted(rank for i in readers for rank in found.stages[i].ranks))
        size_bytes = graph.parameter_index[name].size_bytes
        reduce_ns += all_reduce_ns(problem.machines, ranks, size_bytes) if len(readers) > 1 else 0
    trains = stage.cost.backward
    return {
        "forward_ns": sum(t.forward_ns[at] for t in times) + sum(ns for ns, _ in host),
        "backward_input_ns": sum(t.backward_input_ns[at] for t in times) + sum(ns for ns, _ in back),
        "backward_weight_ns": sum(t.backward_weight_ns[at] for t in times) + added,
        "activation_bytes": sum(kept[key] for key in own)
        + sum(max(size, kept.get(key, 0)) for key, size in arrived.items() if key not in own),
        "static_bytes": held * (2 + OPTIMIZERS[problem.optimizer].copies),
        "optimizer_ns": round(profile.whole.optimizer_ns * held / total) if problem.optimizer != "none" else 0,
        "reduce_ns": reduce_ns if trains else 0,
    }


def _of(tensors: Sequence[Tensor], edge: PlanEdge) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.name in edge.tensors]


def _operator(graph: OperatorGraph, name: str) -> Operator:
    return graph.operators[graph.index[name]]


def one_price_failures(num_cases: int) -> list[str]:
    """Every twentieth case is a search, the others random candidates."""
    tried = range(num_cases)
    return [line for seed in tried for line in (search_failures if seed % 20 == 0 else candidate_failures)(seed)]
