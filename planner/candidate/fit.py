"""Whether a plan fits: what every rank may hold against what it peaks at, what pins keep apart.

Leaves out what stages hold (`planner.candidate.price`).
"""

from collections.abc import Sequence

from planner.graph.atoms import Apart, Partition
from planner.plan.lockstep import Block
from planner.question.problem import Problem

NO_LIMIT = 1 << 62


def limits_of(problem: Problem, blocks: Sequence[Block]) -> tuple[int, ...]:
    """Return the bytes that a rank of each block may hold: its least device's."""
    known = problem.memory_limits_bytes
    return tuple(min(known[rank] or NO_LIMIT for rank in block) for block in blocks)


def excess_bytes(peaks: Sequence[int], limits: Sequence[int]) -> int:
    """Return by how much the worst rank is over its limit; 0 when all fit."""
    return max(0, *(peak - limit for peak, limit in zip(peaks, limits, strict=True)))


def num_apart_violations(apart: Apart, partition: Partition) -> int:
    """Return how many atoms would have to leave their stages, all but those of one pattern in each."""
    mixed = 0
    for patterns in apart:
        held: dict[int, list[int]] = {}
        for number, row in enumerate(patterns):
            for atom in row:
                held.setdefault(partition[atom], [0] * len(patterns))[number] += 1
        mixed += sum(sum(counts) - max(counts) for counts in held.values())
    return mixed
