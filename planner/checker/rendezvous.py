"""Can all ranks work their lists off when every send waits until its receive has been reached.

The strictest way to carry messages: nothing is buffered, and one stuck rank holds up all that wait for
it. A plan that goes through here goes through with buffers too. A REDUCE waits for the stage's other ranks.
"""

from collections.abc import Iterator, Mapping, Sequence

from planner.checker.problem import Problem
from planner.checker.steps import Layout, Step

Orders = Sequence[Sequence[Step]]
Ends = Mapping[tuple[int, str], tuple[int, str]]


def deadlock_problems(layout: Layout, orders: Orders, ends: Ends) -> Iterator[Problem]:
    """Yield the ring of ranks that wait for each other, if there is one."""
    at = [0] * len(orders)
    moving = list(range(len(orders)))
    while moving:
        rank = moving.pop()
        while at[rank] < len(orders[rank]):
            partners = _partners(layout, orders[rank][at[rank]], ends)
            if not all(_waits_there(orders, at, partner) for partner in partners):
                break
            at[rank] += 1
            for other, _ in partners:
                at[other] += 1
            moving.extend(other for other, _ in partners)
    stuck = [rank for rank, order in enumerate(orders) if at[rank] < len(order)]
    if stuck:
        yield Problem("deadlock", f"ranks {stuck}", _ring(layout, orders, at, ends, stuck[0]))


def _partners(layout: Layout, step: Step, ends: Ends) -> list[tuple[int, str]]:
    """Return (rank, text) of the actions that must be reached elsewhere before this one ends."""
    if step.kind == "REDUCE":
        return [(rank, step.text) for rank in layout.ranks[step.stage] if rank != step.rank]
    end = ends.get((step.rank, step.text))
    return [end] if end else []


def _waits_there(orders: Orders, at: Sequence[int], partner: tuple[int, str]) -> bool:
    rank, text = partner
    return at[rank] < len(orders[rank]) and orders[rank][at[rank]].text == text


def _ring(layout: Layout, orders: Orders, at: Sequence[int], ends: Ends, start: int) -> str:
    """Follow who waits for whom from a stuck rank until one comes round again."""
    path: list[Step] = []
    rank = start
    while rank not in (step.rank for step in path):
        step = orders[rank][at[rank]]
        path.append(step)
        rank = next(p[0] for p in _partners(layout, step, ends) if not _waits_there(orders, at, p))
    ring = path[[step.rank for step in path].index(rank) :]
    waits = [
        f"rank {step.rank} in {step.text} waits for rank {after.rank}"
        for step, after in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]
    return f"{', '.join(waits)}; order sends and receives as one global sequence would pass them"
