"""Run the lists of all ranks on the strictest transport, and find who can never go on.

A send waits for its receive and a receive for its send, messages from one
rank to another arrive in the order sent, a reduction waits for all its members. What passes here passes on
every layout of communicators. Orders without transfers are run on data alone: an action starts when what
it needs is over on whatever rank. Leaves out time.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass

from simulator.actions import COMPUTE, RECEIVES, SENDS, Action, Kind
from simulator.dependencies import needs, overlapping, transfers
from simulator.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Wait:
    """Rank `rank` is at `position` forever, waiting for `reason`, which `other` rank owes."""

    rank: int
    position: int
    reason: Action
    other: int


def is_lowered(schedule: Schedule) -> bool:
    """Whether a schedule holds any send or receive."""
    return any(action.kind in SENDS | RECEIVES for order in schedule.orders for action in order)


def waits_for_ever(schedule: Schedule) -> tuple[Wait, ...]:
    """Return a circle of ranks that wait on each other, none when all lists come to their end.

    The schedule holds everything that its actions need (`simulator.validation` looks at that first).
    """
    run = _Run(schedule)
    run.to_the_end()
    return run.circle()


def partner(action: Action) -> Action:
    """Return the other end of a transfer."""
    other = {Kind.SEND_F: Kind.RECV_F, Kind.RECV_F: Kind.SEND_F, Kind.SEND_B: Kind.RECV_B, Kind.RECV_B: Kind.SEND_B}
    return Action(other[action.kind], action.peer, action.microbatch, action.slice_index, action.stage)


def peer_rank(schedule: Schedule, transfer: Action) -> int:
    """Return the rank at the other end of a transfer."""
    group = overlapping(schedule.graph, transfer.peer, transfer.microbatch, transfer.microbatch + 1)[0]
    return schedule.graph.rank_of(transfer.peer, group)


class _Run:
    """How far each rank has come."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.lowered = is_lowered(schedule)
        self.position = [0] * len(schedule.orders)
        self.done: set[Action] = set()
        self.waits: dict[Action, tuple[Action, ...]] = _waits(schedule) if self.lowered else _needs_in_pairs(schedule)
        self.waiters: dict[Action, set[int]] = {}
        self.home = {
            a: rank for rank, order in enumerate(schedule.orders) for a in order if a.kind in COMPUTE | RECEIVES
        }
        self.members: dict[Action, list[int]] = {}
        for rank, order in enumerate(schedule.orders):
            for action in order:
                if action.kind is Kind.REDUCE:
                    self.members.setdefault(action, []).append(rank)

    def head(self, rank: int) -> Action | None:
        """Return the action that a rank is at."""
        order, at = self.schedule.orders[rank], self.position[rank]
        return order[at] if at < len(order) else None

    def to_the_end(self) -> None:
        """Move ranks on until none can move."""
        look = list(range(len(self.position)))
        while look:
            rank = look.pop()
            action = self.head(rank)
            if action is None or self.missing(rank, action) is not None:
                continue
            movers = self.together(rank, action)
            for mover in movers:
                finished = self.schedule.orders[mover][self.position[mover]]
                self.position[mover] += 1
                self.done.add(finished)
                look += [mover, *self.waiters.pop(finished, ())]

    def together(self, rank: int, action: Action) -> Iterable[int]:
        """Return the ranks that move on at once with an action that can go."""
        if self.lowered and action.kind in SENDS | RECEIVES:
            return (rank, peer_rank(self.schedule, action))
        return self.members[action] if self.lowered and action.kind is Kind.REDUCE else (rank,)

    def missing(self, rank: int, action: Action) -> tuple[Action, int] | None:
        """Return what a rank's next action still waits for, and the rank that owes it."""
        for need in self.waits.get(action, ()):
            if need not in self.done:
                self.waiters.setdefault(need, set()).add(rank)
                return need, self.home[need]
        if self.lowered and action.kind in SENDS | RECEIVES:
            other, owed = peer_rank(self.schedule, action), partner(action)
            if self.head(other) != owed or (owed.kind in SENDS and not self._has_result(owed)):
                return owed, other
        if self.lowered and action.kind is Kind.REDUCE:
            for member in self.members[action]:
                if self.head(member) != action:
                    return action, member
        return None

    def _has_result(self, send: Action) -> bool:
        return all(need in self.done for need in self.waits[send])

    def circle(self) -> tuple[Wait, ...]:
        """Follow who waits for whom until a rank comes up twice."""
        stuck = [rank for rank in range(len(self.position)) if self.head(rank) is not None]
        path: list[Wait] = []
        rank = stuck[0] if stuck else -1
        while rank >= 0 and rank not in [wait.rank for wait in path]:
            action = self.head(rank)
            owed = self.missing(rank, action) if action else None
            if owed is None:
                break
            path.append(Wait(rank, self.position[rank], *owed))
            rank = owed[1]
        starts = [i for i, wait in enumerate(path) if wait.rank == rank]
        return tuple(path[starts[0] :]) if starts else tuple(path)


def _needs_in_pairs(schedule: Schedule) -> dict[Action, tuple[Action, ...]]:
    """Return what each action needs: a pair starts with all that either needs, and ends with the results of both."""
    found, pairs = needs(schedule), schedule.pairs
    for first, second in pairs.items():
        found[first] += found[second]
    return {action: tuple(pairs.get(need, need) for need in needed) for action, needed in found.items()}


def _waits(schedule: Schedule) -> dict[Action, tuple[Action, ...]]:
    """Return what each action of a lowered list needs on its own rank: results made there, and receives."""
    graph, found = schedule.graph, needs(schedule)
    rank = {action: graph.rank_of(action.stage, action.microbatch) for action in found}
    waits = {action: [n for n in needed if rank[n] == rank[action]] for action, needed in found.items()}
    for action in found:
        for transfer in transfers(graph, action, found):
            waits[transfer.send] = [action]
            consumer = _consumer(schedule, transfer.receive, found)
            if consumer is not None:
                waits[consumer].append(transfer.receive)
    return {action: tuple(needed) for action, needed in waits.items()}


def _consumer(schedule: Schedule, receive: Action, present: Container[Action]) -> Action | None:
    first = overlapping(schedule.graph, receive.stage, receive.microbatch, receive.microbatch + 1)[0]
    kinds = (Kind.F,) if receive.kind is Kind.RECV_F else (Kind.I, Kind.B)
    for action in (Action(kind, receive.stage, first, piece) for kind in kinds for piece in (receive.slice_index, -1)):
        if action in present:
            return action
    return None
