"""From an evaluated candidate to the plan: every plan but those that are read from files is made here.

The step time is that of the very schedule that is written, so that objective and prediction agree to the nanosecond.
Leaves out the search.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata

from costmodel.machines import catalogue
from costmodel.model.graph import OperatorGraph
from costmodel.model.profile import Profile
from costmodel.model.whole_model import SplitRatios
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluator, Run
from planner.candidate.gathering import with_gathering
from planner.candidate.upper_memory import upper_bytes
from planner.graph.names import stage_names
from planner.plan import Batch, Plan, PlanEdge, PlanStage, Prediction, SearchResult, Training
from planner.plan.lockstep import spread
from planner.plan.rank_order import rank_order_of
from planner.question.assumptions import assumptions, step_interval
from planner.question.problem import Problem
from planner.question.same_model import sample_of
from planner.question.targets import runs_on
from simulator.actions import Action
from simulator.lowering import lower


def make(
    evaluator: Evaluator, candidate: Candidate, search: SearchResult, reason: str, *, lowered: bool = True
) -> Plan:
    """Return the plan of a candidate.

    Parameters
    ----------
    evaluator : Evaluator
        Of the candidate's micro-batch size.
    candidate : Candidate
    search : SearchResult
    reason : str
        Why this candidate was chosen, for the reader of the plan.
    lowered : bool
        Whether messages are in the orders; a plan that is only looked at does without.
    """
    problem, graph = evaluator.problem, evaluator.problem.profile.graph
    run = evaluator.simulate(candidate)
    size, machines = candidate.microbatch_size, problem.machines
    used = tuple(sorted(rank for block in run.priced.blocks for rank in block))
    number = {rank: i for i, rank in enumerate(used)}
    plan = Plan(
        model_name=graph.name,
        fingerprint=graph.fingerprint,
        num_operators=len(graph.operators),
        cluster=machines if used == tuple(range(len(used))) else machines.only(used),
        batch=Batch(problem.global_batch, size, evaluator.num_microbatches),
        schedule=candidate.schedule,
        stages=tuple(_stages(evaluator, candidate, run, number)),
        edges=tuple(
            PlanEdge(
                e.source,
                e.target,
                tuple(graph.tensors[t].name for t in row),
                e.size_bytes,
                e.p2p_ns,
                e.gradient,
                evaluator.pricer.border(row, candidate.places[e.source].config),
            )
            for e, row in zip(run.priced.costs.edges, run.priced.flows.values(), strict=True)
        ),
        orders=spread(run.priced.blocks, _orders(run, lowered=lowered)),
        prediction=_prediction(evaluator, candidate, run),
        search=search,
        runs_on=(),
        training=Training(
            problem.profile.dtype.removeprefix("torch."),
            problem.profile.origin.autocast,
            problem.optimizer,
        ),
        assumptions=assumptions(problem, size),
        provenance=provenance(problem, size),
        schedule_options={"in_flight": list(candidate.in_flight)} if candidate.in_flight else {},
        extra={"choice": reason, "sample": sample_of(graph)},
        rank_order=rank_order_of(
            [place.config for place in candidate.places],
            [tuple(number[rank] for rank in place.ranks) for place in candidate.places],
        ),
    )
    return replace(plan, runs_on=runs_on(problem, plan))


def _stages(evaluator: Evaluator, candidate: Candidate, run: Run, number: Mapping[int, int]) -> Iterator[PlanStage]:
    """Yield the plan's stages; `number` has the plan's number of each rank that is used."""
    graph, priced = evaluator.problem.profile.graph, run.priced
    called = stage_names([_modules(graph, row) for row in priced.operators])
    owners = evaluator.pricer.sums.owners(candidate.partition).items()
    counted = evaluator.problem.has_module  # other trainers join or divide sums in ways of their own
    rows = zip(priced.operators, candidate.places, priced.costs.stages, called, strict=True)
    for index, (row, place, cost, name) in enumerate(rows):
        stage = PlanStage(
            tuple(graph.operators[i].name for i in row),
            tuple(number[rank] for rank in place.ranks),
            cost,
            place.config,
            place.microbatch_multiple,
            name,
            modules=tuple(dict.fromkeys(graph.parts[i] for i in row if graph.parts[i])),
            shared=tuple(shared for shared, held_by in owners if index in held_by),
        )
        actions = evaluator.num_microbatches // (place.config.data * place.microbatch_multiple)
        sizes = evaluator.pricer.tensor_bytes(place.microbatch_multiple) if counted else ()
        yield with_gathering(stage, graph, row, actions, sizes)


def _modules(graph: OperatorGraph, operators: Sequence[int]) -> list[str]:
    """Return the module paths of a stage's operators, their own names where they have no module."""
    row = [graph.operators[i] for i in operators]
    return [operator.module for operator in row if operator.module] or [operator.name for operator in row]


def _orders(run: Run, *, lowered: bool) -> list[tuple[str, ...]]:
    """Return the order of each block; where one replica was simulated, all do the same with their own batches.

    The k-th micro-batch of replica d is number k x replicas + d of the batch. A rank by itself sends nothing.
    """
    schedule, replicas = run.times.structure.schedule, run.replicas
    found = lower(schedule, run.times.timeline()) if lowered and len(schedule.orders) > 1 else schedule
    return [order for row in found.orders for order in _of_replicas(row, replicas)]


def _of_replicas(order: Sequence[Action], replicas: int) -> list[tuple[str, ...]]:
    if replicas == 1:
        return [tuple(map(str, order))]
    parts = list(map(_around_microbatch, order))
    return [
        tuple([f"{head}{k * replicas + number}{tail}" if k >= 0 else head for head, k, tail in parts])
        for number in range(replicas)
    ]


def _around_microbatch(action: Action) -> tuple[str, int, str]:
    """Return an action's text before its micro-batch, that, and the text after it."""
    head = f"{action.stage}{action.kind}"
    return head, action.microbatch, str(action).removeprefix(f"{head}{action.microbatch}")


def _prediction(evaluator: Evaluator, candidate: Candidate, run: Run) -> Prediction:
    peaks = run.times.peak_memory_bytes
    upper = upper_bytes(evaluator, candidate, run)
    per_rank = [
        spread(run.priced.blocks, [size for size in sizes for _ in range(run.replicas)]) for sizes in (peaks, upper)
    ]
    step_ns = run.times.step_time_ns
    interval = expected_ns(evaluator.problem, step_ns)
    return Prediction(step_ns, run.times.span_ns, run.times.bubble_ratio, per_rank[0], per_rank[1], interval)


def expected_ns(problem: Problem, step_ns: int) -> tuple[int, int] | None:
    """Return between what four of five measured steps lie; None where the error of predictions is not known.

    No step is faster than its products at the devices' peak, whatever the constants: there an interval is cut.
    """
    wide = step_interval(problem)
    if wide is None:
        return None
    return max(math.floor(step_ns * wide[0]), min(step_ns, at_peak_ns(problem))), math.ceil(step_ns * wide[1])


def at_peak_ns(problem: Problem) -> int:
    """Return what a batch's matrix products take at the dense peak of all devices; 0 where the catalogue lacks one."""
    graph, precision = problem.profile.graph, problem.precision_name or problem.profiled_precision
    trained = {parameter.name for parameter in graph.parameters if parameter.trainable}
    flop = sum(
        operator.flop * (1 + operator.trainable + (operator.trainable and not trained.isdisjoint(operator.parameters)))
        for operator in graph.operators
        if operator.work and operator.work.kind == "matmul"
    )
    names = [problem.machines.device_of(rank).catalogue for rank in range(problem.num_devices)]
    peaks = {name: catalogue.device(name).tflops.get(precision, 0.0) if name else 0.0 for name in set(names)}
    peak = sum(peaks[name] for name in names) if all(peaks.values()) else 0.0
    return round(problem.global_batch * flop / (1000 * peak)) if peak else 0


def provenance(problem: Problem, microbatch_size: int) -> dict[str, object]:
    """Return what a plan was made from: no clock readings, host names or dates."""
    ratios = problem.measured(microbatch_size).split_ratios
    return {
        "penstock": version(),
        "profile": profile_digest(problem.profile),
        "seed": problem.effort.seed,
        "options": {
            "planner": problem.planner,
            "schedule": problem.schedule,
            "devices": problem.num_devices,
            "microbatch_size": problem.microbatch_size,
            "memory_limit_bytes": problem.memory_limit_bytes,
            "max_stages": problem.max_stages,
            "time_limit_s": problem.effort.time_limit_s,
            "deterministic_limit": problem.effort.deterministic_limit,
            "target": problem.target,
            "fixed": problem.space.to_json(),
            **({"memory_margin_bytes": problem.memory_margin_bytes} if problem.memory_margin_bytes else {}),
            **({"pins": problem.pins.to_json()} if problem.pins else {}),
            **({"habits": dict(problem.habits)} if problem.habits else {}),
            **({"from": plan_digest(problem.old_plan)} if problem.old_plan else {}),
        },
        **({"calibration": dict(problem.calibration.values)} if problem.calibration.digest else {}),
        **({"split_ratios": asdict(ratios)} if ratios != SplitRatios() else {}),
    }


def profile_digest(profile: Profile) -> str:
    """SHA-256 of what a plan depends on in a profile: model, sizes, times."""
    content = (profile.graph.fingerprint, profile.dtype, profile.microbatch_sizes, profile.times, profile.whole)
    return hashlib.sha256(repr(content).encode()).hexdigest()


def plan_digest(plan: Plan) -> str:
    """SHA-256 of what a search takes from an old plan: its stages, how they run and in which order."""
    stages = [(s.operators, s.ranks, s.config, s.microbatch_multiple) for s in plan.stages]
    edges = [(e.source, e.target, e.tensors) for e in plan.edges]
    content = (plan.fingerprint, plan.batch.microbatch_size, plan.schedule, plan.in_flight, stages, edges)
    return hashlib.sha256(repr(content).encode()).hexdigest()


def version() -> str:
    """Return the version that is installed."""
    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
