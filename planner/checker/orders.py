"""Is every rank's order legal: each action exactly once, on its rank, after what it needs.

Counts and ranks first; sequences only of actions that are there once. What arrives from other ranks is
the matter of `planner.checker.messages`. Leaves out times.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from planner.checker.problem import PlanProblem
from planner.checker.steps import BACKWARD, COMPUTE, Layout, Step

Orders = Sequence[Sequence[Step]]
Key = tuple[str, int, int]
"""Kind, stage and first micro-batch of a compute action."""


def count_problems(layout: Layout, orders: Orders) -> Iterator[PlanProblem]:
    """Yield compute actions that are missing, occur twice or on another's rank."""
    steps = [step for order in orders for step in order if step.kind in COMPUTE]
    counts = Counter((step.kind, step.stage, step.microbatch) for step in steps)
    for step in steps:
        right = layout.rank_of(step.stage, step.microbatch)
        if step.rank != right:
            yield PlanProblem("rank", step.place, f"stage {step.stage} works on this micro-batch on rank {right}")
        if step.kind in (*BACKWARD, "R") and not layout.backward[step.stage]:
            yield PlanProblem("count", step.place, f"stage {step.stage} has forwards only")
    for (kind, stage, first), count in counts.items():
        if count > 1:
            yield PlanProblem("count", f"stage {stage}", f"{stage}{kind}{first} occurs {count} times; once is right")
    for stage in range(len(layout.ranks)):
        for first in layout.firsts(stage):
            yield from _missing(layout, counts, stage, first)


def _missing(layout: Layout, counts: Mapping[Key, int], stage: int, first: int) -> Iterator[PlanProblem]:
    there = {kind for kind in COMPUTE if counts.get((kind, stage, first))}
    rank = layout.rank_of(stage, first)
    if "F" not in there:
        yield PlanProblem("count", f"rank {rank}", f"{stage}F{first} is missing")
    backward = there & set(BACKWARD)
    if layout.backward[stage] and backward not in ({"B"}, {"I", "W"}):
        found = " and ".join(f"{stage}{kind}{first}" for kind in sorted(backward)) or "none"
        yield PlanProblem(
            "count", f"rank {rank}", f"backward of {stage}F{first}: found {found}; B alone or I and W is right"
        )


def sequence_problems(layout: Layout, orders: Orders) -> Iterator[PlanProblem]:
    """Yield actions that come before another one of their own rank that they need."""
    at = compute_steps(orders)
    for step in at.values():
        for need in _own_needs(step, at):
            yield from _after(step, need)
    for source, target in layout.edges:
        for mine, theirs in layout.meetings(source, target):
            if layout.rank_of(source, mine) == layout.rank_of(target, theirs):
                yield from _after(at["F", target, theirs], at["F", source, mine])
                if (source, target) in layout.gradients:
                    yield from _after(backward_of(at, source, mine), backward_of(at, target, theirs))


def backward_of(at: Mapping[Key, Step], stage: int, first: int) -> Step:
    """Return the step that computes the gradient a group sends back."""
    return at.get(("I", stage, first)) or at["B", stage, first]


def compute_steps(orders: Orders) -> dict[Key, Step]:
    """Return compute steps by kind, stage and first micro-batch."""
    return {_key(step): step for order in orders for step in order if step.kind in COMPUTE}


def _key(step: Step) -> Key:
    return step.kind, step.stage, step.microbatch


def _own_needs(step: Step, at: Mapping[Key, Step]) -> Iterable[Step]:
    kinds = {"R": ("F",), "B": ("F", "R"), "I": ("F", "R"), "W": ("I",)}.get(step.kind, ())
    return (at[kind, step.stage, step.microbatch] for kind in kinds if (kind, step.stage, step.microbatch) in at)


def _after(step: Step, need: Step) -> Iterator[PlanProblem]:
    if step.rank == need.rank and step.position < need.position:
        yield PlanProblem("order", step.place, f"comes before {need.text}, which it needs")
