"""Is a schedule legal? Finds what is wrong with it, and shows where.

Models twelve classes of illegal orders (`problems`), checked against the stage graph alone; memory needs costs. First
each action for itself, then what is there and what is not (`presence`), then the order on each rank, then across ranks:
links and, with the strictest transport (`rendezvous`), orders that wait on themselves. Leaves out time. Needs the
standard library alone.
"""

from collections.abc import Iterator
from itertools import islice

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs
from simulator.actions import RECEIVES, SENDS, Action, Kind
from simulator.schedule import Schedule
from simulator.validation.order_memory import held_bytes
from simulator.validation.presence import presence, wrong_actions
from simulator.validation.problems import CLASSES, Board, ScheduleProblem
from simulator.validation.rendezvous import is_lowered, partner, peer_rank, waits_for_ever

__all__ = ["CLASSES", "ScheduleProblem", "validate_schedule"]

MOST_PROBLEMS = 100
"""A file may name a thousand million micro-batches and hold none of them."""


def validate_schedule(
    schedule: Schedule, costs: Costs | None = None, memory_limit_bytes: int | None = None
) -> tuple[ScheduleProblem, ...]:
    """Find what is wrong with a schedule; nothing found means that every list comes to its end.

    Parameters
    ----------
    schedule : Schedule
        Compute orders, closed (REDUCE, OPT) or lowered (SEND, RECV) or neither.
    costs, memory_limit_bytes : optional
        Hold each rank's memory, static part included, against a limit.

    Returns
    -------
    tuple of ScheduleProblem
        Of what is missing or too many the first hundred; later checks are left out when earlier ones found
        something that would mislead them.

    Raises
    ------
    InvalidInput
        When the number of orders is not that of the ranks.
    """
    if len(schedule.orders) != schedule.graph.num_ranks:
        raise InvalidInput(f"{len(schedule.orders)} orders for {schedule.graph.num_ranks} ranks; give one a rank")
    board = Board(schedule)
    sound: list[Action] = []
    problems = list(wrong_actions(board, sound))
    problems += islice(presence(board, sound), MOST_PROBLEMS)
    problems += _order_on_ranks(board)
    if not problems and is_lowered(schedule):
        problems += _links(board)
    if not problems:
        problems += _across_ranks(board)
    if costs is not None and memory_limit_bytes is not None and not problems:
        problems += _memory(board, costs, memory_limit_bytes)
    return tuple(problems)


def _order_on_ranks(board: Board) -> Iterator[ScheduleProblem]:
    """Yield what is not in order: F, then B; I, then W; REDUCE behind its stage's backwards; OPT behind everything."""
    closed: dict[int, int] = {}
    for rank, i, action in board.cells:
        before = {Kind.B: Kind.F, Kind.I: Kind.F, Kind.R: Kind.F, Kind.W: Kind.I}.get(action.kind)
        need = Action(before, action.stage, action.microbatch, action.slice_index) if before else None
        if need and board.place.get((rank, need), -1) > i:
            kind = "weight-before-input" if action.kind is Kind.W else "backward-before-forward"
            yield board.problem(kind, rank, i, f"{action} comes before {need}, whose result it needs")
        if action.kind is Kind.OPT:
            closed.setdefault(rank, i)
        elif rank in closed:
            opt = board.schedule.orders[rank][closed[rank]]
            yield board.problem("after-opt", rank, i, f"{action} comes after {opt}; OPT ends a rank's step")
        yield from _after_reduce(board, rank, i, action)


def _after_reduce(board: Board, rank: int, i: int, action: Action) -> Iterator[ScheduleProblem]:
    reduced = board.place.get((rank, Action(Kind.REDUCE, action.stage)))
    if reduced is not None and reduced < i and action.kind in (Kind.B, Kind.I, Kind.W):
        message = f"{action} adds to gradients that {action.stage}REDUCE summed at step {reduced}"
        yield board.problem("waits-on-itself", rank, i, message)


def _links(board: Board) -> Iterator[ScheduleProblem]:
    """Yield links whose messages are not in one order at both ends."""
    sent: dict[tuple[int, int], list[tuple[int, Action]]] = {}
    received: dict[tuple[int, int], list[tuple[int, Action]]] = {}
    for rank, i, action in board.cells:
        if action.kind in SENDS:
            sent.setdefault((rank, peer_rank(board.schedule, action)), []).append((i, action))
        elif action.kind in RECEIVES:
            received.setdefault((peer_rank(board.schedule, action), rank), []).append((i, partner(action)))
    for (sender, receiver), out in sorted(sent.items()):
        for (i, send), (j, wanted) in zip(out, received[sender, receiver], strict=True):
            if send != wanted:
                message = f"{send} is sent where rank {receiver} receives {partner(wanted)} (its step {j})"
                yield board.problem("link-order", sender, i, message, marks=((sender, i), (receiver, j)))
                break


def _across_ranks(board: Board) -> Iterator[ScheduleProblem]:
    """Yield a circle of ranks that wait on each other."""
    circle = waits_for_ever(board.schedule)
    if circle:
        orders = board.schedule.orders
        steps = [f"rank {w.rank} at {orders[w.rank][w.position]} for {w.reason} of rank {w.other}" for w in circle]
        marks = [(w.rank, w.position) for w in circle]
        yield board.problem("waits-on-itself", *marks[0], f"waiting for ever: {'; '.join(steps)}", marks=marks)


def _memory(board: Board, costs: Costs, limit_bytes: int) -> Iterator[ScheduleProblem]:
    """Yield the first action of each rank that needs more than the limit."""
    for rank, order in enumerate(board.schedule.orders):
        for i, held in enumerate(held_bytes(board.schedule, costs, rank)):
            if held > limit_bytes:
                over = f"{order[i]} needs {held} bytes, {held - limit_bytes} above the limit of {limit_bytes}"
                yield board.problem("memory", rank, i, f"{over}; run backwards earlier or raise the limit")
                break
