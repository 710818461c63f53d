"""Plans to compare with: one device, and stages in one line cut in equal parts.

`single` puts everything on one device; `uniform` cuts one depth-first order into equal numbers of
operators, `parameters` into equal bytes of parameters; `chain` is our search with stages in one line. Each takes the
best micro-batch size and schedule for its cut. Leaves out any search for a better cut.
"""

from collections.abc import Callable, Sequence

from planner.search.space.partitions import FamilyPartitions
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem

Weigh = Callable[[FamilyPartitions], Sequence[int]]


def equal_parts(prepared: PreparedProblem, pool: CandidatePool, weigh: Weigh) -> None:
    """Cut one order so that each stage gets about the same weight, in every family of one stage a place."""
    for family in prepared.families.all:
        cuts = prepared.cuts(family)
        order = prepared.orders[0]
        weights = weigh(cuts)
        num_stages = cuts.fixed_stages or cuts.num_stages
        stages = split_by_weight([weights[atom] for atom in order], num_stages)
        found = dict(zip(order, stages, strict=True))
        partition = tuple(found[atom] for atom in range(len(order)))
        if cuts.fixed_stages in (None, max(partition) + 1):
            pool.offer(cuts.evaluate_under(partition, cuts.schedules, line=True))


def num_operators(cuts: FamilyPartitions) -> list[int]:
    """Operators of each atom."""
    return [len(members) for members in cuts.atoms.members]


def parameter_bytes(cuts: FamilyPartitions) -> list[int]:
    """Bytes of the parameters that each atom reads."""
    operators = cuts.atoms.graph.operators
    return [sum(operators[i].parameter_bytes for i in members) for members in cuts.atoms.members]


def split_by_weight(weights: Sequence[int], num_parts: int) -> list[int]:
    """Part of each item: the part in which the middle of its weight falls; parts without items are left out."""
    total = sum(weights) or 1
    before, raw = 0, []
    for weight in weights:
        middle = 2 * before + weight
        raw.append(min(num_parts - 1, middle * num_parts // (2 * total)))
        before += weight
    number = {part: i for i, part in enumerate(dict.fromkeys(raw))}
    return [number[part] for part in raw]
