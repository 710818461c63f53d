"""Local search: move operators across cuts as long as the simulated step gets shorter.

A plan that no move (`planner.search.proposers.moves`) betters is shaken by two random moves and improved again.
Leaves out larger changes, which other orders and CP-SAT bring.
"""

from itertools import islice, takewhile
from random import Random

from planner.candidate.evaluate import Evaluated
from planner.search.budget import Deadline
from planner.search.proposers.moves import moves
from planner.search.space.partitions import FamilyPartitions

NUM_DRAWN = 8
"""Random moves of which the best is taken, so that a plan is shaken and not spoilt."""


def improve(cuts: FamilyPartitions, start: Evaluated, num_evaluations: int, limits: Deadline) -> Evaluated:
    """Return a partition that no move betters, or the best when the number of evaluations is used up."""
    best = start
    left = num_evaluations
    found = True
    while found and left > 0:
        found = False
        with cuts.dropped.candidate():
            for partition in moves(cuts, best):
                if left <= 0 or limits.expired:
                    return best
                left -= 1
                known = best.candidate
                if not cuts.may_beat(best, partition):
                    continue
                for candidate in cuts.evaluate_under(
                    partition, (known.schedule,), line=known.line, in_flight=known.in_flight
                ):
                    if candidate.sort_key < best.sort_key:
                        best, found = candidate, True
                if found:
                    break
    return best


def perturb(
    cuts: FamilyPartitions, start: Evaluated, rng: Random, effort: tuple[int, int], limits: Deadline
) -> Evaluated:
    """Return the best of what random changes of a candidate, each improved, lead to (or the candidate).

    `effort` is how many changes, and how many evaluations the improvement of each may take.
    """
    best = start
    num_shakes, num_evaluations = effort
    line = start.candidate.line
    for _ in range(num_shakes):
        shaken = best
        for _ in range(2):
            near = takewhile(lambda _: not limits.expired, islice(moves(cuts, shaken, rng), NUM_DRAWN))
            under = [
                each
                for partition in near
                for each in cuts.evaluate_under(partition, (best.candidate.schedule,), line=line)
            ]
            if limits.expired or not under:
                return best
            shaken = min(under, key=lambda each: each.sort_key)
        best = min(best, improve(cuts, shaken, num_evaluations, limits), key=lambda c: c.sort_key)
    return best
