"""From a chosen candidate to the plan: stages, edges, lowered orders, prediction, provenance.

Stage i runs on rank i. The step time is that of the very schedule that is written, so that objective and
prediction agree to the nanosecond. Leaves out the search.
"""

import hashlib
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version

from costmodel.model.profile import Profile
from costmodel.model.whole import SplitRatios
from planner.plan import Batch, Plan, PlanEdge, PlanStage, Prediction, SearchResult
from planner.problem import Problem
from planner.search.evaluate import Candidate, Evaluator, Simulated
from planner.targets import runs_on
from simulator.lowering import lower

MEMORY_MARGIN = 0.10
"""The upper memory figure is this much above the predicted peak: saved storages are known within about 5 %."""


def assemble(evaluator: Evaluator, candidate: Candidate, search: SearchResult, reason: str) -> Plan:
    """Return the plan of a candidate.

    Parameters
    ----------
    evaluator : Evaluator
        Of the candidate's micro-batch size.
    search : SearchResult
    reason : str
        Why this candidate was chosen, for the reader of the plan.
    """
    problem, graph = evaluator.problem, evaluator.problem.profile.graph
    found = evaluator.simulate(candidate.partition, candidate.schedule, candidate.shape)
    lowered = lower(found.schedule, found.times.timeline())
    plan = Plan(
        model_name=graph.name,
        fingerprint=graph.fingerprint,
        num_operators=len(graph.operators),
        cluster=problem.machines,
        batch=Batch(problem.global_batch, candidate.microbatch_size, evaluator.num_microbatches),
        schedule=candidate.schedule,
        stages=_stages(evaluator, found),
        edges=_edges(evaluator, found),
        orders=tuple(tuple(map(str, order)) for order in lowered.orders),
        prediction=_prediction(found),
        search=search,
        runs_on=(),
        provenance=provenance(problem, candidate.microbatch_size),
        extra={"choice": reason},
    )
    return with_targets(problem, plan)


def with_targets(problem: Problem, plan: Plan) -> Plan:
    """Say which targets take a plan; one of a described model has no model to run."""
    without = ("executor",) if problem.profile.extra.get("plan_only") else ()
    return replace(plan, runs_on=runs_on(plan, problem.profile.graph, without))


def _stages(evaluator: Evaluator, found: Simulated) -> tuple[PlanStage, ...]:
    operators = evaluator.problem.profile.graph.operators
    rows = zip(found.layout.operators, found.layout.costs.stages, strict=True)
    return tuple(
        PlanStage(tuple(operators[i].name for i in row), (rank,), cost) for rank, (row, cost) in enumerate(rows)
    )


def _edges(evaluator: Evaluator, found: Simulated) -> tuple[PlanEdge, ...]:
    tensors = evaluator.problem.profile.graph.tensors
    rows = zip(found.layout.costs.edges, found.layout.tensors, strict=True)
    return tuple(
        PlanEdge(e.source, e.target, tuple(tensors[t].name for t in row), e.size_bytes, e.p2p_ns, e.gradient)
        for e, row in rows
    )


def _prediction(found: Simulated) -> Prediction:
    times = found.times
    peaks = times.peak_memory_bytes
    upper = tuple(peak + round(peak * MEMORY_MARGIN) for peak in peaks)
    return Prediction(times.step_time_ns, times.span_ns, times.bubble_ratio, peaks, upper)


def provenance(problem: Problem, microbatch_size: int) -> dict[str, object]:
    """Return what a plan was made from, and why its times are estimates: no clock readings, host names or dates."""
    estimated, ratios = problem.estimated(microbatch_size), problem.cost_model(microbatch_size).split_ratios
    return {
        "penstock": _version(),
        "profile": profile_digest(problem.profile),
        "seed": problem.seed,
        "options": {
            "planner": problem.planner,
            "schedule": problem.schedule,
            "devices": problem.num_devices,
            "microbatch_size": problem.microbatch_size,
            "optimizer": problem.optimizer,
            "memory_limit_bytes": problem.memory_limit_bytes,
            "max_stages": problem.max_stages,
            "time_limit_s": problem.time_limit_s,
            "deterministic_limit": problem.deterministic_limit,
            "memory_margin": MEMORY_MARGIN,
            "transfers": _transfers(problem),
            **({"pins": problem.pins.to_json()} if problem.pins else {}),
        },
        **({"estimated": list(estimated)} if estimated else {}),
        **({"split_ratios": asdict(ratios)} if ratios != SplitRatios() else {}),
    }


def _transfers(problem: Problem) -> str:
    if problem.cluster or problem.profile.links:
        return "priced"
    return "free: nothing was measured" if not problem.has_typical_links else "priced: a typical host's links"


def profile_digest(profile: Profile) -> str:
    """SHA-256 of what a plan depends on in a profile: model, sizes, times."""
    content = (profile.graph.fingerprint, profile.dtype, profile.microbatch_sizes, profile.times, profile.whole)
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
