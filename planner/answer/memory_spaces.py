"""What the rows of a table of memory fix: strategies in equal stages, and what differs from one in a single choice."""

from collections.abc import Iterator
from dataclasses import fields, replace
from math import gcd

from planner.question.space import Space

MOST_TENSOR = 8
"""Tensor-parallel ranks: those of a host."""
MOST_STAGES = 8


def strategies(count: int, num_blocks: int, num_experts: int) -> Iterator[tuple[str, Space]]:
    """Yield the names of strategies on a number of devices with what they fix, the simplest first."""
    fixed = Space(stages=1, tensor=1, data=1, zero=0, recompute="none", offload="none")
    if count == 1:
        yield "single", fixed
        yield "offload", replace(fixed, offload="optimizer")
        return
    yield "data-parallel", replace(fixed, data=count)
    for zero in (1, 2, 3):
        yield f"zero-{zero}", replace(fixed, data=count, zero=zero)
    tensor = _largest_divisor(count, MOST_TENSOR)
    beside = replace(fixed, tensor=tensor, sequence_parallel=True, data=count // tensor, zero=int(count > tensor))
    yield "zero-1+tensor" if count > tensor else "tensor", beside
    stages = _largest_divisor(count, min(MOST_STAGES, num_blocks))
    if stages > 1:
        piped = replace(fixed, stages=stages, data=count // stages, zero=int(count > stages))
        yield "zero-1+pipeline" if count > stages else "pipeline", piped
    if count > tensor and (both := _largest_divisor(count // tensor, min(MOST_STAGES, num_blocks))) > 1:
        data = count // tensor // both
        name = "zero-1+tensor+pipeline" if data > 1 else "tensor+pipeline"
        yield name, replace(beside, stages=both, data=data, zero=int(data > 1))
    if num_experts:
        yield "zero-1+expert", replace(fixed, data=count, zero=1, expert=gcd(count, num_experts))


def changes(space: Space, size: int, num_blocks: int) -> Iterator[tuple[Space, int]]:
    """Yield what differs in one choice, and the size of its micro-batches."""
    data, zero, tensor, stages = space.data or 1, space.zero or 0, space.tensor or 1, space.stages or 1
    if size > 1:
        yield space, 1
    for recompute in ("selective", "full"):
        if space.recompute == "none":
            yield replace(space, recompute=recompute), size
    for deeper in range(zero + 1, (1 if stages > 1 else 3) + 1):
        if data > 1:
            yield replace(space, zero=deeper), size
    if data % 2 == 0:
        halved = replace(space, data=data // 2, zero=zero if data > 2 else 0)
        if tensor < MOST_TENSOR:
            yield replace(halved, tensor=2 * tensor, sequence_parallel=True), size
        if zero < 2 and 2 * stages <= num_blocks:
            yield replace(halved, stages=2 * stages), size
    yield replace(space, offload="optimizer"), size


def flags_of(before: Space, size: int, after: Space, new_size: int) -> str:
    """Write what a plan changes as flags of ``penstock plan``."""
    parts = [f"--microbatch-size {new_size}"] if new_size != size else []
    for each in fields(Space):
        value = getattr(after, each.name)
        if value != getattr(before, each.name):
            name = each.name.replace("_", "-")
            parts.append(f"--{name}" if value is True else f"--{name} {value}")
    return " ".join(parts)


def _largest_divisor(number: int, most: int) -> int:
    return max(n for n in range(1, min(number, most) + 1) if number % n == 0)
