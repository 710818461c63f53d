"""How the stages of a pipeline take the ranks: permutations where ranks differ, rank orders where they are alike.

Ranks are alike when they have the same device type and speed. Ranks that are alike keep their own order, so that
neighbours stay on their links. Where unlike ranks have few arrangements, all of them are tried; else the ranks of one
kind stay together, and the kinds are arranged. A pipeline that needs fewer ranks than there are leaves out the last
ones of a permutation. Leaves out permutations that tell apart ranks that are alike, those of many ranks that go back
and forth between kinds, and rank orders that take a replica's own ranks apart, which send each other most.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from math import factorial, prod

from planner.plan.rank_order import PIPELINE_INSIDE, RankOrder
from planner.question.in_stage_support import rank_order_refusal
from planner.question.problem import Problem

Permutation = tuple[int, ...]
Kind = tuple[int, float]
"""Position of the type of device in the cluster's list of types, and speed."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which ranks the places of a pipeline take: those of a permutation, which count along the degrees in an order."""

    permutation: Permutation
    rank_order: RankOrder


MOST_ARRANGED = 12
"""Arrangements of unlike ranks up to which each is a permutation of its own."""
MOST_KINDS = 3
"""Kinds up to which all their permutations are tried; of more kinds, their own order and its reverse."""


def arrangements(problem: Problem, found: Sequence[Permutation]) -> tuple[Arrangement, ...]:
    """Return the arrangements of a problem's ranks in these permutations, and of ranks alike in other rank orders.

    Of these a replica's stages side by side, where several kinds of links join the ranks and the target can be told so.
    """
    fixed = problem.space.rank_order or (problem.pins and problem.pins.stages) or len(found) > 1
    usual = [Arrangement(permutation, problem.space.ranks) for permutation in found]
    if fixed or not link_sizes(problem) or rank_order_refusal(problem.target, PIPELINE_INSIDE):
        return tuple(usual)
    return *usual, Arrangement(found[0], PIPELINE_INSIDE)


def link_sizes(problem: Problem) -> list[int]:
    """Return how many devices each kind of link joins, but those that join all."""
    sizes = {link.group for link in problem.machines.groups}
    return sorted(size for size in sizes if 1 < size < problem.num_devices)


def device_permutations(kinds: Sequence[Kind]) -> tuple[Permutation, ...]:
    """Return permutations of ranks of these kinds: the same first whichever ranks come first, the identity last."""
    rows: dict[Kind, list[int]] = {kind: [] for kind in sorted(set(kinds))}
    for rank, kind in enumerate(kinds):
        rows[kind].append(rank)
    if len(rows) == 1:
        return (tuple(range(len(kinds))),)
    found: list[Permutation] = []
    if _num_arranged(kinds) <= MOST_ARRANGED:
        found += [_filled(row, rows) for row in _arranged(Counter(sorted(kinds)), len(kinds))]
    else:
        arranged = permutations(rows) if len(rows) <= MOST_KINDS else (tuple(rows), tuple(reversed(rows)))
        found += [tuple(chain.from_iterable(rows[kind] for kind in row)) for row in arranged]
    return tuple(dict.fromkeys([*found, tuple(range(len(kinds)))]))


def _num_arranged(kinds: Sequence[Kind]) -> int:
    return factorial(len(kinds)) // prod(map(factorial, Counter(kinds).values()))


def _arranged(left: Counter[Kind], size: int) -> Iterator[tuple[Kind, ...]]:
    """Yield every sequence of the kinds that are left."""
    if not size:
        yield ()
    for kind in [kind for kind, number in left.items() if number]:
        yield from ((kind, *row) for row in _arranged(left - Counter([kind]), size - 1))


def _filled(arranged: Sequence[Kind], rows: dict[Kind, list[int]]) -> Permutation:
    """Return the ranks of an arrangement, those of a kind rising."""
    left = {kind: iter(row) for kind, row in rows.items()}
    return tuple(next(left[kind]) for kind in arranged)
