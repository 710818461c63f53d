"""Do the plan's figures follow from its orders and costs: prediction, search result, batch, devices.

Leaves out whether the costs are true: those come from a profile.
"""

from collections.abc import Iterator, Mapping, Sequence

from costmodel.machines.cluster import Cluster
from costmodel.stages.costs import PER_ACTION
from planner.checker.problem import PlanProblem
from planner.checker.steps import COMPUTE, Layout, Step
from planner.checker.times import CheckedTimes
from planner.plan import Plan, PlanEdge

Orders = Sequence[Sequence[Step]]
SAME_RATIO = 1e-9
SIMPLER_WITHIN = 0.01
"""How much slower than the best a plan of fewer mechanisms may be and be preferred."""


def batch_problems(plan: Plan) -> Iterator[PlanProblem]:
    """Yield what does not divide: micro-batches by multiples, ranks by configurations, costs by actions."""
    batch = plan.batch
    if batch.microbatch_size * batch.num_microbatches != batch.global_size:
        yield PlanProblem(
            "batch",
            "batch",
            f"{batch.num_microbatches} micro-batches of {batch.microbatch_size} do not make {batch.global_size}",
        )
    for index, stage in enumerate(plan.stages):
        if batch.num_microbatches % stage.microbatch_multiple:
            yield PlanProblem(
                "batch",
                f"stage {index}",
                f"takes {stage.microbatch_multiple} micro-batches at a time; the {batch.num_microbatches} of the plan "
                "must be a multiple of that",
            )
            continue
        num_actions = batch.num_microbatches // stage.microbatch_multiple
        for name in PER_ACTION:
            amount = getattr(stage.cost, name)
            if not isinstance(amount, int) and len(amount) != num_actions:
                yield PlanProblem(
                    "cost", f"stage {index}", f"{name} lists {len(amount)} values for {num_actions} actions"
                )


def prediction_problems(plan: Plan, orders: Orders, times: CheckedTimes, num_leads: int) -> Iterator[PlanProblem]:
    """Yield predicted times that do not follow from the orders and costs."""
    prediction = plan.prediction
    rows = [[times.of(step) for step in order if step.kind in COMPUTE] for order in orders]
    span = max((max(e for _, e in row) - min(s for s, _ in row) for row in rows if row), default=0)
    step_time = times.step_time_ns
    for name, found, right in (
        ("step_time_ns", prediction.step_time_ns, step_time),
        ("span_ns", prediction.span_ns, span),
    ):
        if found != right:
            yield PlanProblem("time", f"prediction.{name}", f"{found} ns; the orders and costs give {right} ns")
    interval = prediction.step_time_interval_ns
    if interval and not interval[0] <= prediction.step_time_ns <= interval[1]:
        yield PlanProblem("time", "prediction.step_time_interval_ns", f"{list(interval)} ns leave out the step time")
    compute = sum(end - start for row in rows for start, end in row)
    bubble = 1 - compute / (num_leads * step_time) if step_time else 0.0
    if abs(prediction.bubble_ratio - bubble) > SAME_RATIO:
        yield PlanProblem("time", "prediction.bubble_ratio", f"{prediction.bubble_ratio!r}; the times give {bubble!r}")


def memory_problems(plan: Plan, peaks: Sequence[int], cluster: Cluster) -> Iterator[PlanProblem]:
    """Yield predicted peaks that the orders do not give, and peaks that a device cannot hold."""
    prediction = plan.prediction
    for name in ("peak_memory_bytes", "peak_memory_upper_bytes"):
        if len(getattr(prediction, name)) != len(peaks):
            yield PlanProblem(
                "memory", f"prediction.{name}", f"{len(getattr(prediction, name))} figures; one a rank is right"
            )
            return
    for rank, peak in enumerate(peaks):
        found, upper = prediction.peak_memory_bytes[rank], prediction.peak_memory_upper_bytes[rank]
        if found != peak:
            yield PlanProblem(
                "memory", f"rank {rank}", f"peak predicted as {found} bytes; the orders and costs give {peak}"
            )
        if upper < peak:
            yield PlanProblem("memory", f"rank {rank}", f"upper estimate {upper} bytes lies below the peak {peak}")
        room = cluster.device_of(rank).memory_bytes
        if room and peak > room:  # 0: not known
            yield PlanProblem(
                "memory", f"rank {rank}", f"needs {peak} bytes; its device {cluster.device_of(rank).name!r} has {room}"
            )


def search_problems(plan: Plan) -> Iterator[PlanProblem]:
    """Yield contradictions between the search's result and the prediction."""
    search, step_time = plan.search, plan.prediction.step_time_ns
    if search.objective != step_time:
        yield PlanProblem(
            "search", "search.objective", f"{search.objective}; the predicted step time is {step_time} ns"
        )
    best = search.best_step_time_ns
    most = search.objective if _is_passed_over(plan, best) else best * (1 + SIMPLER_WITHIN)
    if not max(1, search.lower_bound_ns or 0) <= best <= search.objective <= most:
        yield PlanProblem(
            "search",
            "search.best_step_time_ns",
            f"{best}; it lies between the bound {search.lower_bound_ns} and the objective {search.objective}, which is "
            f"at most {SIMPLER_WITHIN:.0%} above it where some trainer runs the best, which fits",
        )
    if search.status == "optimal" and min(search.objective, search.best_step_time_ns) != search.lower_bound_ns:
        yield PlanProblem(
            "search",
            "search.status",
            f"optimal, and the best step time {search.best_step_time_ns} ns is above the bound {search.lower_bound_ns}",
        )


def _is_passed_over(plan: Plan, best_ns: int) -> bool:
    """Whether the plan records that its best step is of one that no trainer runs, unlike this, or that may not fit."""
    records = [plan.extra.get(name) for name in (["best_unrun"] if plan.runs_on else []) + ["best_tight"]]
    return any(isinstance(found, Mapping) and found.get("step_time_ns") == best_ns for found in records)


def link_problems(plan: Plan, layout: Layout) -> Iterator[PlanProblem]:
    """Yield edges that are cheaper than the cheapest link between their ranks."""
    for edge in plan.edges:
        cheapest = min(plan.cluster.p2p_ns(first, second, edge.size_bytes) for first, second in _pairs(layout, edge))
        if edge.p2p_ns < cheapest:
            yield PlanProblem(
                "cluster",
                f"edge {edge.source} -> {edge.target}",
                f"{edge.size_bytes} bytes in {edge.p2p_ns} ns; the cluster's link takes {cheapest} ns",
            )


def cluster_problems(plan: Plan, layout: Layout, cluster: Cluster) -> Iterator[PlanProblem]:
    """Yield where another cluster is not what the plan was made for."""
    if cluster.num_devices < len(plan.orders):
        yield PlanProblem("cluster", "cluster", f"{cluster.num_devices} devices; the plan has {len(plan.orders)} ranks")
        return
    for rank in range(len(plan.orders)):
        planned, found = plan.cluster.device_of(rank), cluster.device_of(rank)
        if (planned.name, planned.type) != (found.name, found.type):
            yield PlanProblem(
                "cluster",
                f"rank {rank}",
                f"a {found.type} device {found.name!r}; the plan is made for {planned.type} {planned.name!r}",
            )
        if plan.cluster.speed_of(rank) != cluster.speed_of(rank):
            yield PlanProblem(
                "cluster",
                f"rank {rank}",
                f"speed {cluster.speed_of(rank):g}; the plan counts on {plan.cluster.speed_of(rank):g}",
            )
    yield from _slower_links(plan, layout, cluster)


def _slower_links(plan: Plan, layout: Layout, cluster: Cluster) -> Iterator[PlanProblem]:
    for edge in plan.edges:
        for first, second in sorted(_pairs(layout, edge)):
            found = cluster.p2p_ns(first, second, edge.size_bytes)
            planned = plan.cluster.p2p_ns(first, second, edge.size_bytes)
            if found > planned:
                yield PlanProblem(
                    "cluster",
                    f"edge {edge.source} -> {edge.target}",
                    f"{edge.size_bytes} bytes from rank {first} to {second} take {found} ns; planned are {planned}",
                )


def _pairs(layout: Layout, edge: PlanEdge) -> set[tuple[int, int]]:
    """Return the pairs of ranks between which an edge's messages go."""
    return {
        (layout.rank_of(edge.source, mine), layout.rank_of(edge.target, theirs))
        for mine, theirs in layout.meetings(edge.source, edge.target)
    }
