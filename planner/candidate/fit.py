"""Whether a plan fits: what every rank may hold against what it peaks at, what pins keep apart; and how to say so.

Leaves out what stages hold (`planner.candidate.price`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from costmodel.errors import NoPlanFits
from planner.ask.problem import Problem
from planner.candidate.candidate import Candidate
from planner.graph.atoms import Apart, Partition
from planner.plan.lockstep import Block

if TYPE_CHECKING:
    from planner.candidate.evaluate import Run

NO_LIMIT = 1 << 62


def limits_of(problem: Problem, blocks: Sequence[Block]) -> tuple[int, ...]:
    """Return the bytes that a rank of each block may hold: its least device's."""
    known = problem.memory_limits_bytes
    return tuple(min(known[rank] or NO_LIMIT for rank in block) for block in blocks)


def excess_bytes(peaks: Sequence[int], limits: Sequence[int]) -> int:
    """Return by how much the worst rank is over its limit; 0 when all fit."""
    return max(0, *(peak - limit for peak, limit in zip(peaks, limits, strict=True)))


def num_mixed(apart: Apart, partition: Partition) -> int:
    """Return how many atoms would have to leave their stages, all but those of one pattern in each."""
    mixed = 0
    for patterns in apart:
        held: dict[int, list[int]] = {}
        for number, row in enumerate(patterns):
            for atom in row:
                held.setdefault(partition[atom], [0] * len(patterns))[number] += 1
        mixed += sum(sum(counts) - max(counts) for counts in held.values())
    return mixed


def no_room(candidate: Candidate, run: "Run", limits: Sequence[int], proof: str) -> NoPlanFits:
    """Return the refusal of a candidate over the memory limit: which rank, by how much, what it holds, the way out."""
    peaks = run.times.peak_memory_bytes
    worst = max(range(len(peaks)), key=lambda i: peaks[i] - limits[i])
    ranks = run.times.structure.schedule.graph.ranks
    cost = next(cost for cost, held in zip(run.priced.costs.stages, ranks, strict=True) if worst in held)
    terms = ", ".join(f"{name} {size}" for name, size in cost.memory_terms)
    return NoPlanFits(
        f"no plan fits into memory: the least that was found peaks at {peaks[worst]} bytes on rank "
        f"{run.blocks[worst][0]} (of {candidate.num_stages} stages, micro-batch size {candidate.microbatch_size}), the "
        f"limit is {limits[worst]}, {peaks[worst] - limits[worst]} bytes less; its first stage holds {terms}, and "
        f"activations of {cost.activation_bytes} a micro-batch; recompute, shard (zero, tensor) or offload more, or "
        f"allow more memory, more devices or a smaller micro-batch{proof}"
    )


def not_apart(num_stages: int, mixed: int, proof: str) -> NoPlanFits:
    """Return the refusal of a plan that breaks the [[apart]] pins."""
    return NoPlanFits(
        f"no plan that was found keeps to the [[apart]] pins: the nearest has {num_stages} stages and {mixed} pieces "
        "beside some that they are to be apart from; allow more stages (--devices, --max-stages) or time, take another "
        f"--planner, or give every [[stage]]{proof}"
    )
