"""Several plans of one model, run in the same processes in turn, so that a drifting machine hits all alike.

`reordered` makes the plans: another schedule, or another placement, of a plan's stages. Leaves out the search.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from costmodel.errors import UsageError
from costmodel.machines.cluster_parts import Host
from costmodel.model.whole_model import SplitRatios
from planner.candidate.order import ordered
from planner.plan import Batch, Plan, Prediction, SearchResult, read_plan
from simulator.actions import Kind, parse_action
from simulator.engine import simulate
from simulator.lowering import close_step, lower
from simulator.timeline import Timeline, write_timeline
from tests.support.ranks.rank_pool import RankPool


def reordered(
    plan: Plan, schedule: str, ranks: Sequence[int] | None = None, num_microbatches: int | None = None
) -> Plan:
    """Return the same stages under another schedule; if given on other ranks, one a stage, or with other batches.

    Of a plan whose stages run whole backwards; a schedule that splits them makes them as dear as the profile says.
    """
    places = tuple((rank,) for rank in ranks) if ranks else tuple(stage.ranks for stage in plan.stages)
    stages = tuple(replace(stage, ranks=place) for stage, place in zip(plan.stages, places, strict=True))
    count = num_microbatches or plan.batch.num_microbatches
    costs = replace(plan.costs(), ranks=places)
    texts = {text for order in plan.orders for text in order}
    reduces = [f"{stage}REDUCE" in texts for stage in range(len(stages))]
    order, costs = ordered(schedule, costs, count, split_ratios(plan))
    stages = tuple(replace(stage, cost=cost) for stage, cost in zip(stages, costs.stages, strict=True))
    closed = close_step(order, reduces, any(t.endswith("OPT") for t in texts))
    lowered = lower(closed, simulate(closed, costs))
    timeline = simulate(lowered, costs)
    memory, step_ns = timeline.peak_memory_bytes, timeline.step_time_ns
    return replace(
        plan,
        stages=stages,
        cluster=replace(plan.cluster, hosts=(Host(plan.cluster.device_of(0).name, costs.num_ranks),)),
        batch=Batch(count * plan.batch.microbatch_size, plan.batch.microbatch_size, count),
        schedule=schedule,
        orders=tuple(tuple(map(str, order)) for order in lowered.orders),
        prediction=Prediction(step_ns, timeline.span_ns, timeline.bubble_ratio, memory, memory),
        search=SearchResult("baseline", step_ns, 0, "none", {}, step_ns),
    )


def split_ratios(plan: Plan) -> SplitRatios:
    """Return what a plan's stages take longer with a split backward; refuse one whose stages have them."""
    ratios = plan.provenance.get("split_ratios", {})
    if ratios and any(parse_action(text).kind is Kind.I for order in plan.orders for text in order):
        raise UsageError(f"the plan's {plan.schedule} splits backwards already; plan with whole ones")
    assert isinstance(ratios, dict)
    return SplitRatios(**ratios)


def run_in_turn(
    plans: Sequence[Path], model: str, num_steps: int, emulate: bool = False, timeline: Path | None = None
) -> list[list[int]]:
    """Return the step times of each plan in ns, after a first one that warms up; all are for as many ranks.

    The `timeline` that is written, if any, is that of the first plan's median step.
    """
    pool = RankPool(len(read_plan(plans[0]).orders))
    words = {"model": model, "num_steps": num_steps, "emulate": emulate, "timeline": timeline}
    try:
        found = pool.run(_steps, plans=[str(path) for path in plans], **words)
    finally:
        pool.close()
    return [[max(times) for times in zip(*rows, strict=True)] for rows in zip(*found, strict=True)]


def _steps(plans: Sequence[str], model: str, num_steps: int, emulate: bool, timeline: Path | None) -> list[list[int]]:
    """Run on one rank; returns its step times of each plan."""
    import torch.distributed as dist

    from costmodel.capture.capture import capture
    from costmodel.capture.models import load_model
    from executor import Pipeline
    from executor.gradients.optimizer import timing_optimizer
    from executor.observe.measure import gather_timeline

    read = [read_plan(path) for path in plans]
    batch = read[0].batch
    source = capture(load_model(model, batch.global_size), batch.microbatch_size)
    times: list[list[int]] = [[] for _ in plans]
    seen: list[Timeline] = []
    with ExitStack() as stack:
        pipelines = [
            stack.enter_context(Pipeline(plan, source, optimizer=timing_optimizer(plan), emulate=emulate))
            for plan in read
        ]
        observer = pipelines[0].observe() if timeline else None
        for step in range(-1, num_steps):
            for row, pipeline in zip(times, pipelines, strict=True):
                if pipeline.num_ranks > 1:
                    dist.barrier()
                start = time.perf_counter_ns()
                pipeline.step()
                if step >= 0:
                    row.append(time.perf_counter_ns() - start)
            if observer and (found := gather_timeline(observer.measured(), pipelines[0].groups)) and step >= 0:
                seen.append(found)
    if timeline and seen:
        write_timeline(timeline, sorted(seen, key=lambda each: each.step_time_ns)[len(seen) // 2])
    return times
