"""Can all ranks work their lists off when every send waits until its receive has been reached.

The strictest way to carry messages: nothing is buffered, and one stuck rank holds up all that wait for
it. A plan that goes through here goes through with buffers too. Collectives are meetings like any other: a REDUCE, and
the OPT of a stage that divides its optimizer, wait for the stage's other ranks, and between its last other action and
its first OPT each rank meets all others, to sum the losses and the norm of the gradients.
"""

from collections.abc import Iterator, Mapping, Sequence

from planner.checker.problem import PlanProblem
from planner.checker.steps import Layout, Step

Orders = Sequence[Sequence[Step]]
Ends = Mapping[tuple[int, str], tuple[int, str]]

CLOSE = "the end of the gradients"
"""The step that a rendezvous of all ranks takes."""


def deadlock_problems(layout: Layout, orders: Orders, ends: Ends) -> Iterator[PlanProblem]:
    """Yield the ring of ranks that wait for each other, if there is one."""
    orders = [_with_close(order) for order in orders]
    at = [0] * len(orders)
    moving = list(range(len(orders)))
    while moving:
        rank = moving.pop()
        while at[rank] < len(orders[rank]):
            partners = _partners(layout, orders, orders[rank][at[rank]], ends)
            if not all(_waits_there(orders, at, partner) for partner in partners):
                break
            at[rank] += 1
            for other, _ in partners:
                at[other] += 1
            moving.extend(other for other, _ in partners)
    stuck = [rank for rank, order in enumerate(orders) if at[rank] < len(order)]
    if stuck:
        yield PlanProblem("deadlock", f"ranks {stuck}", _ring(layout, orders, at, ends, stuck[0]))


def _with_close(order: Sequence[Step]) -> list[Step]:
    """Return an order with the meeting of all ranks before its first OPT; a follower in a block has no order."""
    if not order:
        return []
    place = next((i for i, step in enumerate(order) if step.kind == "OPT"), len(order))
    return [*order[:place], Step(order[0].rank, place, CLOSE, -1, -1, -1, CLOSE), *order[place:]]


def _partners(layout: Layout, orders: Orders, step: Step, ends: Ends) -> list[tuple[int, str]]:
    """Return (rank, text) of the actions that must be reached elsewhere before this one ends."""
    if step.kind == CLOSE:
        return [(rank, CLOSE) for rank, order in enumerate(orders) if order and rank != step.rank]
    if step.kind == "REDUCE" or (step.kind == "OPT" and step.stage in layout.divided):
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
        rank = next(p[0] for p in _partners(layout, orders, step, ends) if not _waits_there(orders, at, p))
    ring = path[[step.rank for step in path].index(rank) :]
    waits = [
        f"rank {step.rank} in {step.text} waits for rank {after.rank}"
        for step, after in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]
    return f"{', '.join(waits)}; order sends and receives as one global sequence would pass them"
