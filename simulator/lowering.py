"""From compute orders to the full list of what each rank issues: REDUCE, OPT, SEND and RECV.

`close_step` adds gradient reductions and optimizer steps; `lower` adds the transfers. All ranks' lists
are projections of ONE global sequence taken from a simulated timeline: each result that crosses ranks is
sent, and received, at the moment its producer ends. Whoever works through its list in order therefore
never waits on itself, even where a send waits for its receive and every reduction for all its members
(the pair at the head of the sequence can always proceed). Leaves out how messages are carried.
"""

import heapq
from collections import Counter
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
    last = [_last_backward(order, len(graph.stages_of(rank))) for rank, order in enumerate(schedule.orders)]
    sequence = _reduction_sequence(schedule, last, reduces)
    orders = []
    for rank, order in enumerate(schedule.orders):
        own = [stage for stage in sequence if rank in graph.ranks[stage]]
        closed = _with_reductions(order, last[rank], own)
        if optimizer:
            closed += [Action(Kind.OPT, stage) for stage in graph.stages_of(rank) if graph.backward[stage]]
        orders.append(tuple(closed))
    return replace(schedule, orders=tuple(orders))


def _last_backward(order: Sequence[Action], num_stages: int) -> dict[int, int]:
    """Position of each stage's last backward in an order."""
    found: dict[int, int] = {}
    for i in range(len(order) - 1, -1, -1):
        if order[i].kind in _BACKWARD and order[i].stage not in found:
            found[order[i].stage] = i
            if len(found) == num_stages:
                break
    return found


def _reduction_sequence(
    schedule: Schedule, last_backward: Sequence[dict[int, int]], reduces: Sequence[bool]
) -> list[int]:
    """Stages to reduce, the one with most actions behind its last backward (on any rank) first."""
    behind: dict[int, int] = {}
    for order, found in zip(schedule.orders, last_backward, strict=True):
        for stage, last in found.items():
            behind[stage] = min(behind.get(stage, len(order)), len(order) - last)
    return sorted((stage for stage in behind if reduces[stage]), key=lambda stage: (-behind[stage], stage))


def _with_reductions(order: Sequence[Action], last: dict[int, int], sequence: Sequence[int]) -> list[Action]:
    """Put REDUCE behind each stage's last backward, and behind those that come before it in the sequence."""
    closed: list[Action] = []
    done = 0
    for stage in sequence:
        behind = max(done, last.get(stage, -1) + 1)
        closed += (*order[done:behind], Action(Kind.REDUCE, stage))
        done = behind
    closed += order[done:]
    return closed


def lower(schedule: Schedule, timeline: Timeline) -> Schedule:
    """Add SEND and RECV to a schedule, in one global order.

    The compute actions of all ranks are walked by the end they have in the timeline (ties: lowest rank
    first, never before what they need). At each one's end its messages are appended to the sender's and to
    the receiver's list (`simulator.dependencies.transfers` says which: one a range of micro-batches that a
    producer's and a consumer's action share, named by its first). A REDUCE is appended on all ranks of its
    stage at the moment the last of them gets there (and has done those before it), OPT at the end. The times of
    the lowered schedule are those of the compute orders.

    Raises
    ------
    InvalidInput
        When the timeline lacks an action of the schedule, an order (or its reductions) waits on itself, or the
        schedule has overlapped pairs.
    """
    if schedule.paired:
        raise InvalidInput(
            "overlapped pairs are simulated, and run by nothing; take latency or links, or orders without pairs"
        )
    lists: list[list[Action]] = [[] for _ in schedule.orders]
    reductions = _Reductions(schedule)
    present = {action for order in schedule.orders for action in order}
    for rank, action in _walk(schedule, timeline):
        if action.kind is Kind.REDUCE:
            for reduction in reductions.reached(rank, action):
                for member in reductions.members[reduction]:
                    lists[member].append(reduction)
            continue
        lists[rank].append(action)
        for transfer in transfers(schedule.graph, action, present):
            lists[transfer.sender].append(transfer.send)
            lists[transfer.receiver].append(transfer.receive)
    reductions.check_all_done()
    for rank, order in enumerate(schedule.orders):
        lists[rank] += [action for action in order if action.kind is Kind.OPT]
    return replace(schedule, orders=tuple(map(tuple, lists)))


def computed(schedule: Schedule) -> Schedule:
    """Return a schedule without its transfers: the orders that the engine takes."""
    orders = (tuple(a for a in order if a.kind not in SENDS | RECEIVES) for order in schedule.orders)
    return replace(schedule, orders=tuple(orders))


class _Reductions:
    """REDUCEs of all ranks: each happens when all its members have reached it, in the sequence of every member."""

    def __init__(self, schedule: Schedule) -> None:
        self.sequences = [[a for a in order if a.kind is Kind.REDUCE] for order in schedule.orders]
        self.members: dict[Action, list[int]] = {}
        for rank, sequence in enumerate(self.sequences):
            for action in sequence:
                self.members.setdefault(action, []).append(rank)
        self._reached: Counter[Action] = Counter()
        self._next = [0] * len(self.sequences)

    def reached(self, rank: int, action: Action) -> list[Action]:
        """Note that a rank has come to an action, and return what happens now."""
        self._reached[action] += 1
        happens: list[Action] = []
        look = [action]
        while look:
            action = look.pop()
            ready = self._reached[action] == len(self.members[action])
            if ready and all(self._head(member) == action for member in self.members[action]):
                happens.append(action)
                for member in self.members[action]:
                    self._next[member] += 1
                heads = {head for member in self.members[action] if (head := self._head(member))}
                look += sorted(heads, key=lambda head: -head.stage)
        return happens

    def _head(self, rank: int) -> Action | None:
        sequence, at = self.sequences[rank], self._next[rank]
        return sequence[at] if at < len(sequence) else None

    def check_all_done(self) -> None:
        """Refuse sequences that wait on each other."""
        heads = sorted({str(head) for rank in range(len(self.sequences)) if (head := self._head(rank))})
        if heads:
            raise InvalidInput(f"ranks issue {', '.join(heads)} in different sequences; close_step gives them one")


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
