"""Which sums of gradients must wait for a rank's last message, so that a device with one hardware queue gets on, too.

A sum starts behind the last REDUCE of its stages and stands in its queue until all its ranks have come to it. Where
queues are few, a message behind it stands, too; and another of these ranks may need that message to get there. So the
plan's orders are run once with every call standing until its other ends are there; sums at which that stands still
start behind the last message of each of their ranks, where nobody waits for them any more. Leaves out time.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from executor.lanes import Lanes
from planner.plan import Plan
from simulator.actions import RECEIVES, SENDS, Action, Kind, parse_action

MESSAGES = -1
"""Stands among the stages that a sum waits for, for the rank's last message."""


@dataclass(frozen=True, slots=True)
class Sum:
    """One sum: the stages that share what is summed, and their ranks."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(slots=True)
class _Rank:
    """Where one rank is: calls still to come, the sums it has not started and what these wait for."""

    calls: deque[tuple[str, int, tuple[object, ...]]]
    waiting: dict[int, set[int]]
    before: deque[int] = field(default_factory=deque)

    def done(self, stage: int) -> None:
        for stages in self.waiting.values():
            stages.discard(stage)
        while self.waiting and not next(iter(self.waiting.values())):
            number = next(iter(self.waiting))
            del self.waiting[number]
            self.before.append(number)


def late_sums(plan: Plan, lanes: Lanes, sums: Sequence[Sum]) -> frozenset[int]:
    """Return the numbers of the sums that start behind the last messages; `sums` stand in the order of all ranks."""
    orders = [[parse_action(text) for text in order] for order in plan.orders]
    late: set[int] = set()
    while any(map(_messages_behind_sums, orders)):  # else nobody waits for what stands behind a sum
        stuck = _stuck(plan, lanes, orders, sums, late) - late
        if not stuck:
            break
        late |= stuck
    return frozenset(late)


def last_message(order: Sequence[Action]) -> int:
    """Return the place of a rank's last message, -1 where it has none."""
    return max((i for i, action in enumerate(order) if action.kind in SENDS | RECEIVES), default=-1)


def _messages_behind_sums(order: Sequence[Action]) -> bool:
    first = next((i for i, action in enumerate(order) if action.kind is Kind.REDUCE), len(order))
    return last_message(order) > first


def _stuck(
    plan: Plan, lanes: Lanes, orders: Sequence[Sequence[Action]], sums: Sequence[Sum], late: set[int]
) -> set[int]:
    """Return the sums that ranks stand before once nobody moves any more; none where all come to their end."""
    ranks = []
    for rank, order in enumerate(orders):
        waiting = {
            i: {s for s in one.stages if rank in plan.stages[s].ranks} | ({MESSAGES} if i in late else set())
            for i, one in enumerate(sums)
            if rank in one.ranks
        }
        ranks.append(_Rank(deque(_calls(lanes, rank, order)), waiting))
    moved = set(range(len(ranks)))
    while moved:
        moved = {other for rank in moved for other in _moves(ranks, sums, rank)}
    return {rank.before[0] for rank in ranks if rank.before}


def _calls(lanes: Lanes, rank: int, order: Sequence[Action]) -> list[tuple[str, int, tuple[object, ...]]]:
    """Return (what, other rank or stage, message) for each call that may stand."""
    found: list[tuple[str, int, tuple[object, ...]]] = []
    last = last_message(order)
    for place, action in enumerate(order):
        stage, peer, k = action.stage, action.peer, action.microbatch
        if action.kind in SENDS:
            message = (action.kind is Kind.SEND_F, stage, peer, k)
            found += [("send", other, message) for other in lanes.receivers(stage, peer, k, rank)]
        elif action.kind in RECEIVES:
            found.append(("receive", lanes.sender(peer, stage, k, rank), (action.kind is Kind.RECV_F, peer, stage, k)))
        elif action.kind is Kind.REDUCE:
            found.append(("reduce", stage, ()))
        if place == last:
            found.append(("reduce", MESSAGES, ()))
    return [*([("reduce", MESSAGES, ())] if last < 0 else []), *found]


def _moves(ranks: Sequence[_Rank], sums: Sequence[Sum], number: int) -> set[int]:
    """Let a rank do what it can; returns the ranks that may go on then."""
    rank, moved = ranks[number], set[int]()
    while True:
        if rank.before:
            members = sums[rank.before[0]].ranks
            if any(not ranks[m].before or ranks[m].before[0] != rank.before[0] for m in members):
                return moved
            for member in members:
                ranks[member].before.popleft()
            moved |= set(members)
        elif not rank.calls:
            rank.before += rank.waiting
            rank.waiting.clear()
            if not rank.before:
                return moved
            moved |= {m for i in rank.before for m in sums[i].ranks}
        else:
            what, other, message = rank.calls[0]
            if what == "reduce":
                rank.calls.popleft()
                rank.done(other)
                continue
            peer, answer = ranks[other], ("receive" if what == "send" else "send", number, message)
            if peer.before or not peer.calls or peer.calls[0] != answer:
                return moved
            rank.calls.popleft()
            peer.calls.popleft()
            moved.add(other)
