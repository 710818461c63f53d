"""What single changes of a plan would gain, each found by simulating the plan with that change alone.

Only what the plan file holds can be changed: times of stages, transfers, sums of gradients, and the number of
micro-batches where its schedule is made again by name. A change says nothing about how to bring it about, nor about
the memory that it takes. Leaves out other cuts, strategies and placements: those are the planner's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from costmodel.errors import PenstockError
from costmodel.stages.costs import Amount, Costs, StageCost
from planner.plan import Plan
from planner.plan.replay import plan_schedule
from simulator.actions import Kind
from simulator.schedule import Schedule

TIMES = ("forward_ns", "backward_input_ns", "backward_weight_ns", "recompute_ns")
BYTES = ("activation_bytes", "weight_activation_bytes")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change, and the simulated step time with it."""

    change: str
    step_time_ns: int


def what_ifs(plan: Plan) -> tuple[WhatIf, ...]:
    """Return what each change that applies to a plan would make of its step time, the best first."""
    from simulator.engine import Structure

    schedule, costs = plan_schedule(plan), plan.costs()
    structure = Structure(schedule, "latency", "independent")
    before_ns = structure.times(costs, plan.speeds).step_time_ns
    found = [
        WhatIf(text, structure.times(changed, plan.speeds).step_time_ns)
        for text, changed in _changes(costs, schedule, plan.speeds)
    ]
    found += _halved(plan, schedule, costs, before_ns)
    return tuple(sorted(found, key=lambda each: each.step_time_ns))


def _changes(costs: Costs, schedule: Schedule, speeds: Sequence[float]) -> Iterator[tuple[str, Costs]]:
    """Yield changes that keep every order as it is."""
    work_ns = [_work_ns(costs, schedule.num_microbatches, stage) for stage in range(len(costs.stages))]
    slowest = work_ns.index(max(work_ns))
    yield (
        f"stage {slowest}, the one with most work a rank, 10 % faster",
        _with_stages(costs, lambda i, stage: _scaled(stage, 9, 10) if i == slowest else stage),
    )
    alone = len({rank for ranks in costs.ranks for rank in ranks}) == sum(map(len, costs.ranks))
    if len(costs.stages) > 1 and alone and set(costs.multiples) == {1} and all(work_ns):
        paces = [min(speeds[rank] for rank in ranks) for ranks in costs.ranks]
        shares = [int(sum(work_ns) * pace / sum(paces)) for pace in paces]
        yield (
            "work divided evenly among the stages" + ", each by its ranks' speed" * (len(set(paces)) > 1),
            _with_stages(costs, lambda i, stage: _scaled(stage, shares[i], work_ns[i])),
        )
    if any(edge.p2p_ns for edge in costs.edges):
        edges = tuple(replace(edge, p2p_ns=edge.p2p_ns // 2) for edge in costs.edges)
        yield "transfers between stages twice as fast", replace(costs, edges=edges)
    if any(stage.recompute_ns for stage in costs.stages):
        yield "no forward run again", _with_stages(costs, lambda _, stage: replace(stage, recompute_ns=0))
    if any(stage.reduce_ns for stage in costs.stages):
        yield "sums of gradients for nothing", _with_stages(costs, lambda _, stage: replace(stage, reduce_ns=0))
    if any(stage.optimizer_ns for stage in costs.stages):
        yield "optimizer's step for nothing", _with_stages(costs, lambda _, stage: replace(stage, optimizer_ns=0))


def _work_ns(costs: Costs, num_microbatches: int, index: int) -> int:
    """Return the time of all of a stage's actions on each of its ranks, the mean of its replicas."""
    num_actions = -(-num_microbatches // costs.multiples[index])
    total = 0
    for name in TIMES:
        amount: Amount = getattr(costs.stages[index], name)
        total += amount * num_actions if isinstance(amount, int) else sum(amount)
    return total // len(costs.ranks[index])


def _with_stages(costs: Costs, change: Callable[[int, StageCost], StageCost]) -> Costs:
    return replace(costs, stages=tuple(change(i, stage) for i, stage in enumerate(costs.stages)))


def _scaled(stage: StageCost, numerator: int, denominator: int, names: tuple[str, ...] = TIMES) -> StageCost:
    """Multiply what an action takes, halves rounded up."""

    def part(value: int) -> int:
        return (2 * value * numerator + denominator) // (2 * denominator)

    amounts = {name: getattr(stage, name) for name in names}
    found = {name: part(a) if isinstance(a, int) else tuple(map(part, a)) for name, a in amounts.items()}
    return replace(stage, **found)  # type: ignore[arg-type]


def _halved(plan: Plan, schedule: Schedule, costs: Costs, before_ns: int) -> list[WhatIf]:
    """Split every micro-batch into two, where the schedule made by name is the plan's own to the nanosecond."""
    if plan.batch.microbatch_size % 2 or any(
        isinstance(getattr(stage, name), tuple) for stage in costs.stages for name in (*TIMES, *BYTES)
    ):
        return []
    if _named_ns(plan, schedule, costs, 1) != before_ns:
        return []
    halved = _with_stages(costs, lambda _, stage: _scaled(stage, 1, 2, (*TIMES, *BYTES)))
    step_time_ns = _named_ns(plan, schedule, halved, 2)
    text = "twice as many micro-batches, each half the time, transfers as long as before"
    return [] if step_time_ns is None else [WhatIf(text, step_time_ns)]


def _named_ns(plan: Plan, schedule: Schedule, costs: Costs, factor: int) -> int | None:
    """Return the step time of the plan's schedule made by name; None where it is not made so."""
    from simulator.engine import simulate
    from simulator.lowering import close_step
    from simulator.schedules import build_schedule

    closing = {(action.kind, action.stage) for order in schedule.orders for action in order}
    try:
        compute = build_schedule(plan.schedule, costs, factor * schedule.num_microbatches, in_flight=plan.in_flight)
    except PenstockError:
        return None
    reduces = [(Kind.REDUCE, stage) in closing for stage in range(len(costs.stages))]
    closed = close_step(compute, reduces, any(kind is Kind.OPT for kind, _ in closing))
    return simulate(closed, costs, speeds=plan.speeds).step_time_ns
