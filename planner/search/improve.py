"""Local search: move operators across cuts as long as the simulated step gets shorter.

A move takes an atom, with its descendants (or its ancestors) within its stage, to another stage or to a
new one; the stage graph must stay without cycles. A plan that no move betters is shaken by two random moves
and improved again. Leaves out larger changes, which other orders and CP-SAT bring.
"""

from collections.abc import Iterator
from random import Random

from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition, numbered
from planner.search.cuts import Cuts, by_stage
from planner.search.limits import Limits


def improve(cuts: Cuts, start: Evaluated, num_evaluations: int, limits: Limits) -> Evaluated:
    """Return a partition that no move betters, or the best when the number of evaluations is used up."""
    best = start
    left = num_evaluations
    found = True
    while found and left > 0:
        found = False
        for partition in moves(cuts, best):
            if left <= 0 or limits.over:
                return best
            left -= 1
            for candidate in cuts.under(partition, (best.candidate.schedule,), line=best.candidate.line):
                if candidate.rank < best.rank:
                    best, found = candidate, True
            if found:
                break
    return best


def shake(cuts: Cuts, start: Evaluated, rng: Random, effort: tuple[int, int], limits: Limits) -> Evaluated:
    """Return the best of what random changes of a candidate, each improved, lead to (or the candidate).

    `effort` is how many changes, and how many evaluations the improvement of each may take.
    """
    best = start
    num_shakes, num_evaluations = effort
    for _ in range(num_shakes):
        shaken = best
        for _ in range(2):
            near = list(moves(cuts, shaken))
            if limits.over or not near:
                return best
            shaken = next(
                iter(cuts.under(rng.choice(near), (best.candidate.schedule,), line=best.candidate.line)), shaken
            )
        best = min(best, improve(cuts, shaken, num_evaluations, limits), key=lambda c: c.rank)
    return best


def moves(cuts: Cuts, candidate: Evaluated) -> Iterator[Partition]:
    """Yield the partitions one move away, those that unload the busiest stages first.

    A move that fills a stage beyond the candidate's step time is left out: no order could make up for it.
    """
    atoms, partition = cuts.atoms, candidate.candidate.partition
    most_ns = candidate.step_time_ns * max(cuts.speeds) / cuts.num_microbatches
    num_stages = max(partition) + 1
    load, work, masks = cuts.loads_ns(partition), by_stage(partition, cuts.works_ns), [0] * num_stages
    for atom, stage in enumerate(partition):
        masks[stage] |= 1 << atom
    targets = range(min(num_stages + (cuts.fixed_stages is None), cuts.num_stages))
    seen: set[tuple[int, int]] = set()
    for atom in sorted(range(len(atoms)), key=lambda a: (-load[partition[a]], a)):
        inside = masks[partition[atom]]
        for related in (atoms.descendants[atom], atoms.ancestors[atom]):
            moved = (related & inside) | 1 << atom
            for target in targets:
                if target == partition[atom] or (moved, target) in seen:
                    continue
                seen.add((moved, target))
                if candidate.fits and target < num_stages and work[target] + _work(cuts, moved) > most_ns:
                    continue
                groups = [target if moved >> a & 1 else stage for a, stage in enumerate(partition)]
                after = numbered(atoms, groups)
                if after is not None and cuts.fixed_stages in (None, max(after) + 1):
                    yield after


def _work(cuts: Cuts, mask: int) -> int:
    return sum(work for atom, work in enumerate(cuts.works_ns) if mask >> atom & 1)
