"""A plan of a job whose every choice is fixed by flags: checked, priced as its trainer runs it, cut, written out.

A job that the executor runs is priced as the executor does it: gradients summed after the last backward, a stage's
whole forward run again. Any other is priced as trainers do it (`costmodel.stages.strategies`): overlapped sums,
blocks run again one by one. Leaves out the cut (`planner.fixed`) and who takes the result (`planner.targets`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from costmodel.errors import NoPlanFits
from costmodel.stages.costs import Costs
from planner.assemble import MEMORY_MARGIN, provenance, with_targets
from planner.choices import Shape
from planner.fixed import FixedSearch, Tried, replica
from planner.grouped import GroupPricing
from planner.job_request import Job
from planner.plan import Batch, Plan, PlanEdge, PlanStage, Prediction, SearchResult
from planner.plan.lockstep import spread
from planner.problem import Problem, Report
from planner.targets import refusal
from simulator.actions import Action
from simulator.bounds import bound_of
from simulator.lowering import lower


def plan_job(problem: Problem, report: Report | None) -> Plan:
    """Return the plan of a problem whose choices are fixed.

    Raises
    ------
    UsageError
        When choices contradict each other, the model, the devices or the target.
    NoPlanFits
        When a rank is over its memory limit, or the target does not take the cut.
    """
    job = Job(problem)
    search = FixedSearch(job.problem, job.shape, job.pricings, job.as_executor)
    refused = ""
    for choice in search.choices():
        if choice.excess_bytes and refused:
            break
        _check_fits(search, job.shape, choice)
        found = _assemble(job, search, choice)
        why = refusal(problem.target, found, problem.profile)
        if not why:
            if report:
                report(f"{choice.schedule}: step {choice.times.step_time_ns / 1e6:.3f} ms")
            return found
        refused = refused or why
    raise NoPlanFits(refused)


def _check_fits(search: FixedSearch, shape: Shape, tried: Tried) -> None:
    if not tried.excess_bytes:
        return
    peaks, limits = tried.times.peak_memory_bytes, search.limits(search.whole)
    worst = max(range(len(peaks)), key=lambda i: peaks[i] - limits[i])
    rank = (shape.block(worst) if search.whole else shape.ranks(worst))[0]
    cost = tried.layout.costs.stages[worst // shape.config.data if search.whole else worst]
    terms = ", ".join(f"{name} {size}" for name, size in cost.memory_terms)
    raise NoPlanFits(
        f"the job does not fit into memory: rank {rank} peaks at {peaks[worst]} bytes at micro-batch size "
        f"{tried.pricing.microbatch_size}, the limit is {limits[worst]}, {peaks[worst] - limits[worst]} bytes less; "
        f"its first stage holds {terms}, and activations of {cost.activation_bytes} a micro-batch; recompute, shard "
        "(zero, tensor) or offload more, or allow more memory"
    )


def _assemble(job: Job, search: FixedSearch, choice: Tried) -> Plan:
    problem, graph, layout = job.problem, job.problem.profile.graph, choice.layout
    size = choice.pricing.microbatch_size
    lowered = lower(choice.times.structure.schedule, choice.times.timeline())
    names = [operator.name for operator in graph.operators]
    plan = Plan(
        model_name=graph.name,
        fingerprint=graph.fingerprint,
        num_operators=len(names),
        cluster=problem.machines,
        batch=Batch(problem.global_batch, size, problem.global_batch // size),
        schedule=choice.schedule,
        stages=tuple(
            PlanStage(tuple(names[i] for i in row), job.shape.ranks(s % job.shape.places), cost, job.shape.config)
            for s, (row, cost) in enumerate(zip(layout.operators, layout.costs.stages, strict=True))
        ),
        edges=tuple(
            PlanEdge(e.source, e.target, tuple(graph.tensors[t].name for t in row), e.size_bytes, e.p2p_ns, e.gradient)
            for e, row in zip(layout.costs.edges, layout.tensors, strict=True)
        ),
        orders=spread(search.blocks, _of_blocks(search, lowered.orders)),
        prediction=_prediction(search, choice),
        search=_result(search, choice),
        runs_on=(),
        provenance=_provenance(job, size),
        extra={"choice": _reason(search, choice)},
    )
    return with_targets(problem, plan)


def _reason(search: FixedSearch, choice: Tried) -> str:
    slower = 100 * (choice.times.step_time_ns / max(1, search.fastest_ns(choice)) - 1)
    text = "equally many layers a stage" if choice.whole_layers else "the best cut found"
    return f"{text}, {slower:.2f} % slower than the fastest that was simulated, and simpler" if slower else text


def _provenance(job: Job, microbatch_size: int) -> dict[str, object]:
    found = provenance(job.problem, microbatch_size)
    options = found["options"]
    assert isinstance(options, dict)  # noqa: S101 - made there
    options |= {"choices": job.problem.choices.to_json(), "precision": job.precision, "target": job.problem.target}
    options["priced_for"] = "executor" if job.as_executor else "trainers"
    return found


def _of_blocks(search: FixedSearch, orders: Sequence[Sequence[Action]]) -> list[tuple[str, ...]]:
    """Return the order of each block; where one replica was simulated, every other does the same with its own batches.

    The k-th micro-batch of replica d is number k x data + d of the batch.
    """
    if search.whole:
        return [tuple(map(str, order)) for order in orders]
    data = search.shape.config.data
    return [
        tuple(str(replace(a, microbatch=a.microbatch * data + d)) if a.microbatch >= 0 else str(a) for a in order)
        for order in orders
        for d in range(data)
    ]


def _result(search: FixedSearch, choice: Tried) -> SearchResult:
    """Bound the orders of these stages: a replica's, which the whole step contains."""
    data = search.shape.config.data
    costs: Costs = choice.layout.costs if search.whole else replica(choice.layout.costs, data)
    speeds = search.speeds if search.whole else ()
    bound = bound_of(choice.times.structure.schedule, costs, speeds=speeds)
    step_ns = choice.times.step_time_ns
    best_ns = search.fastest_ns(choice)
    return SearchResult("baseline", step_ns, min(bound.ns, best_ns), bound.scope, best_step_time_ns=best_ns)


def _prediction(search: FixedSearch, choice: Tried) -> Prediction:
    times, pricing = choice.times, choice.pricing
    upper = [peak + round(peak * MEMORY_MARGIN) for peak in times.peak_memory_bytes]
    if isinstance(pricing, GroupPricing):
        upper = _upper_bytes(search, pricing, choice)
    peaks, upper_peaks = (
        spread(search.blocks, [size for size in sizes for _ in range(1 if search.whole else search.shape.config.data)])
        for sizes in (times.peak_memory_bytes, upper)
    )
    return Prediction(times.step_time_ns, times.span_ns, times.bubble_ratio, peaks, upper_peaks)


def _upper_bytes(search: FixedSearch, pricing: GroupPricing, choice: Tried) -> list[int]:
    """Return the upper bound of each rank simulated: its peak, and by how much its stages' terms may exceed theirs.

    The device's context and workspace, which no stage has for itself, count once a rank.
    """
    copies = search.shape.config.data if search.whole else 1
    orders, places = choice.times.structure.schedule.orders, search.shape.places
    flows = pricing.flows(choice.cut)
    more, shared = [0] * places, [0] * places
    for stage, operators in enumerate(choice.cut):
        place = stage % places
        in_flight = _most_in_flight(orders[place * copies], stage)
        terms = pricing.terms(stage, operators, pricing.received(flows, stage), in_flight)
        workspace = terms.workspace.upper - terms.workspace.point
        more[place] += terms.upper_bytes - terms.point_bytes - workspace
        shared[place] = max(shared[place], workspace)
    peaks = choice.times.peak_memory_bytes
    return [peak + more[rank // copies] + shared[rank // copies] for rank, peak in enumerate(peaks)]


def _most_in_flight(order: Sequence[Action], stage: int) -> int:
    alive = most = 0
    for action in order:
        alive += (action.stage == stage) * _CHANGE[action.kind]
        most = max(most, alive)
    return most


_CHANGE = Counter({"F": 1, "B": -1, "W": -1})
"""Micro-batches in flight after an action; 0 for others."""
