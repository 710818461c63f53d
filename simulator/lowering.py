"""From compute orders to the full list of what each rank issues: REDUCE, OPT, SEND and RECV.

`close_step` adds gradient reductions and optimizer steps; `lower` adds the transfers. All ranks' lists
are projections of ONE global sequence taken from a simulated timeline: each result that crosses ranks is
sent, and received, at the moment its producer ends. Whoever works through its list in order therefore
never waits on itself, even where a send waits for its receive and every reduction for all its members
(the pair at the head of the sequence can always proceed). Leaves out how messages are carried.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

from costmodel.errors import InvalidInput
from simulator.actions import COMPUTE, RECEIVES, SENDS, Action, Kind
from simulator.dependencies import needs, transfers
from simulator.schedule import Schedule
from simulator.timeline import Timeline

_BACKWARD = (Kind.B, Kind.I, Kind.W)


def close_step(schedule: Schedule, reduces: Sequence[bool], optimizer: bool) -> Schedule:
    """Add what ends a step to compute orders.

    Parameters
    ----------
    schedule : Schedule
        Orders of compute actions.
    reduces : sequence of bool
        For each stage whether its gradients are summed over ranks (replicas, parameters tied to others').
        REDUCE follows the stage's last backward on each of its ranks (a replica that got no micro-batch takes
        part too), and all ranks issue reductions in one
        sequence: two that share two stages would otherwise wait on each other.
    optimizer : bool
        Whether to end each rank's order with OPT of each of its stages. A stage without backwards has none.
    """
    graph = schedule.graph
    if len(reduces) != graph.num_stages:
        raise InvalidInput(f"{len(reduces)} flags for the reductions of {graph.num_stages} stages; give one a stage")
    sequence = _reduction_sequence(schedule, reduces)
    orders = []
    for rank, order in enumerate(schedule.orders):
        closed = _with_reductions(order, [stage for stage in sequence if rank in graph.ranks[stage]])
        if optimizer:
            closed += [Action(Kind.OPT, stage) for stage in graph.stages_of(rank) if graph.backward[stage]]
        orders.append(tuple(closed))
    return replace(schedule, orders=tuple(orders))


def _last_backward(order: Sequence[Action]) -> dict[int, int]:
    """Position of each stage's last backward in an order."""
    return {action.stage: i for i, action in enumerate(order) if action.kind in _BACKWARD}


def _reduction_sequence(schedule: Schedule, reduces: Sequence[bool]) -> list[int]:
    """Stages to reduce, the one with most actions behind its last backward (on any rank) first."""
    behind: dict[int, int] = {}
    for order in schedule.orders:
        for stage, last in _last_backward(order).items():
            behind[stage] = min(behind.get(stage, len(order)), len(order) - last)
    return sorted((stage for stage in behind if reduces[stage]), key=lambda stage: (-behind[stage], stage))


def _with_reductions(order: Sequence[Action], sequence: Sequence[int]) -> list[Action]:
    """Put REDUCE behind each stage's last backward, and behind those that come before it in the sequence."""
    last, at = _last_backward(order), -1
    behind: dict[int, list[Action]] = {}
    for stage in sequence:
        at = max(at, last.get(stage, -1))
        behind.setdefault(at, []).append(Action(Kind.REDUCE, stage))
    closed = behind.get(-1, [])
    for i, action in enumerate(order):
        closed += (action, *behind.get(i, ()))
    return closed


def lower(schedule: Schedule, timeline: Timeline) -> Schedule:
    """Add SEND and RECV to a schedule, in one global order.

    The compute actions of all ranks are walked by the end they have in the timeline (ties: lowest rank
    first, never before what they need). At each one's end its messages are appended to the sender's and to
    the receiver's list (`simulator.dependencies.transfers` says which: one a range of micro-batches that a
    producer's and a consumer's action share, named by its first). A REDUCE is appended on all ranks of its
    stage at the moment the last of them gets there, OPT at the end.

    Raises
    ------
    InvalidInput
        When the timeline lacks an action of the schedule, or an order waits on itself.
    """
    lists: list[list[Action]] = [[] for _ in schedule.orders]
    members = _members(schedule)
    arrived: dict[int, set[int]] = {}
    for rank, action in _walk(schedule, timeline):
        if action.kind is Kind.REDUCE:
            arrived.setdefault(action.stage, set()).add(rank)
            if len(arrived[action.stage]) == len(members[action.stage]):
                for member in members[action.stage]:
                    lists[member].append(action)
            continue
        lists[rank].append(action)
        for transfer in transfers(schedule.graph, action):
            lists[transfer.sender].append(transfer.send)
            lists[transfer.receiver].append(transfer.receive)
    for rank, order in enumerate(schedule.orders):
        lists[rank] += [action for action in order if action.kind is Kind.OPT]
    return replace(schedule, orders=tuple(map(tuple, lists)))


def computed(schedule: Schedule) -> Schedule:
    """Return a schedule without its transfers: the orders that the engine takes."""
    orders = (tuple(a for a in order if a.kind not in SENDS | RECEIVES) for order in schedule.orders)
    return replace(schedule, orders=tuple(orders))


def _members(schedule: Schedule) -> dict[int, list[int]]:
    """Ranks that take part in each stage's reduction."""
    members: dict[int, list[int]] = {}
    for rank, order in enumerate(schedule.orders):
        for action in order:
            if action.kind is Kind.REDUCE:
                members.setdefault(action.stage, []).append(rank)
    return members


def _walk(schedule: Schedule, timeline: Timeline) -> Iterator[tuple[int, Action]]:
    """Yield (rank, action) of all orders but OPT by their end in the timeline."""
    pending = _Walk(schedule, timeline)
    while pending.ready:
        _, rank = heapq.heappop(pending.ready)
        action = pending.orders[rank][pending.position[rank]]
        yield rank, action
        pending.done(rank, action)
    stuck = [order[at] for order, at in zip(pending.orders, pending.position, strict=True) if at < len(order)]
    if stuck:
        raise InvalidInput(f"the orders wait on each other at {', '.join(map(str, stuck))}; validate the schedule")


class _Walk:
    """Which ranks' next actions have all they need, by their end in the timeline."""

    def __init__(self, schedule: Schedule, timeline: Timeline) -> None:
        self.orders = [[a for a in order if a.kind is not Kind.OPT] for order in schedule.orders]
        self.position = [0] * len(self.orders)
        self.ready: list[tuple[int, int]] = []
        self._needs = needs(schedule)
        self._end = {span.action: span.end_ns for span in timeline.spans if span.action.kind in COMPUTE}
        self._finished: set[Action] = set()
        self._waiters: dict[Action, list[int]] = {}
        self._now = 0
        for rank in range(len(self.orders)):
            self._look(rank)

    def done(self, rank: int, action: Action) -> None:
        """Move a rank on, and with it those that waited for the action."""
        self._now = max(self._now, self._end.get(action, 0))
        self._finished.add(action)
        self.position[rank] += 1
        for waiter in (rank, *self._waiters.pop(action, ())):
            self._look(waiter)

    def _look(self, rank: int) -> None:
        order, at = self.orders[rank], self.position[rank]
        if at == len(order):
            return
        action = order[at]
        if action.kind not in COMPUTE:
            heapq.heappush(self.ready, (self._now, rank))
            return
        for need in self._needs[action]:
            if need not in self._finished:
                self._waiters.setdefault(need, []).append(rank)
                return
        if action not in self._end:
            raise InvalidInput(f"the timeline lacks {action} of rank {rank}; simulate this very schedule")
        heapq.heappush(self.ready, (self._end[action], rank))
