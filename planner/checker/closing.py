"""How a step ends: gradients summed where several ranks hold them, then the optimizer, then nothing.

Leaves out what the reductions and optimizer steps cost.
"""

from collections.abc import Iterator, Sequence

from costmodel.model.graph import OperatorGraph
from planner.checker.problem import PlanProblem
from planner.checker.steps import BACKWARD, Layout, Step, leads_of
from planner.plan import Plan

Orders = Sequence[Sequence[Step]]


def shared_stages(plan: Plan, graph: OperatorGraph | None) -> frozenset[int]:
    """Return the stages whose gradients live on several ranks: replicas, parts of a sequence, tied parameters."""
    shared = {index for index, stage in enumerate(plan.stages) if len(stage.ranks) > stage.config.tensor}
    readers: dict[str, set[int]] = {}
    for index, stage in enumerate(plan.stages):
        for name in stage.operators if graph else ():
            for parameter in graph.operators[graph.index[name]].parameters if graph else ():
                if graph and graph.parameter_index[parameter].trainable:
                    readers.setdefault(parameter, set()).add(index)
    for stages in readers.values():
        if len({rank for stage in stages for rank in leads_of(plan.stages[stage])}) > 1:
            shared |= stages
    return frozenset(stage for stage in shared if plan.stages[stage].cost.backward)


def closing_problems(layout: Layout, orders: Orders, shared: frozenset[int]) -> Iterator[PlanProblem]:
    """Yield what is wrong with REDUCE and OPT.

    A stage of `shared` needs one REDUCE on each of its ranks, another may have it (on all of them or none).
    If the plan has any OPT, each stage with a backward has one on each of its ranks.
    """
    steps = [step for order in orders for step in order if step.kind in ("REDUCE", "OPT")]
    optimizes = any(step.kind == "OPT" for step in steps)
    reduces = shared | {step.stage for step in steps if step.kind == "REDUCE"}
    for step in steps:
        if step.rank not in layout.ranks[step.stage]:
            yield PlanProblem(
                "rank", step.place, f"stage {step.stage} is on the ranks {list(layout.ranks[step.stage])}"
            )
        if not layout.backward[step.stage]:
            yield PlanProblem("count", step.place, f"stage {step.stage} has forwards only and nothing to {step.kind}")
    for stage, ranks in enumerate(layout.ranks):
        for rank in ranks if layout.backward[stage] else ():
            yield from _once(orders[rank], rank, "REDUCE", stage, stage in reduces)
            yield from _once(orders[rank], rank, "OPT", stage, optimizes)
    for order in orders:
        yield from _too_late(order)


def _once(order: Sequence[Step], rank: int, kind: str, stage: int, needed: bool) -> Iterator[PlanProblem]:
    count = sum(step.kind == kind and step.stage == stage for step in order)
    if count != needed:
        yield PlanProblem("count", f"rank {rank}", f"{stage}{kind} occurs {count} times; {int(needed)} is right")


def _too_late(order: Sequence[Step]) -> Iterator[PlanProblem]:
    """Yield backwards after their stage's REDUCE, and anything but OPT after an OPT."""
    closed: set[int] = set()
    ended = ""
    for step in order:
        if ended and step.kind != "OPT":
            yield PlanProblem("order", step.place, f"comes after {ended}; only other OPT follow one")
        if step.kind in BACKWARD and step.stage in closed:
            yield PlanProblem("order", step.place, f"comes after {step.stage}REDUCE, which sums the finished gradients")
        if step.kind == "REDUCE":
            closed.add(step.stage)
        if step.kind == "OPT":
            ended = step.text
