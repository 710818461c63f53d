"""In which order sums of gradients start, and which of them behind a rank's last message: one queue is enough.

A device that runs one sum at a time needs one order on all ranks. It is the one in which sums are ready on all their
ranks when the plan's orders are run with every message waiting for its other end. Then, where a device has few hardware
queues, whatever stands behind a sum stands until all its ranks have come to it; another of these may need a message
from there to come. So the orders are run again, sums standing, too: those at which that stands still start behind the
last message of each of their ranks, where nobody waits any more. Leaves out time.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from executor.communication.lanes import Lanes
from planner.plan import Plan
from simulator.actions import RECEIVES, SENDS, Action, Kind, parse_action

MESSAGES = -1
"""Stands among the stages that a sum waits for, for the rank's last message."""

Call = tuple[str, int, tuple[object, ...]]
"""What, with which other rank or of which stage, and the message."""


@dataclass(slots=True)
class Sum:
    """One sum: the stages that share what is summed, their ranks, and whether it starts behind the last messages."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    late: bool = False


def order_allreduces(plan: Plan, lanes: Lanes, shared: Iterable[tuple[int, ...]]) -> list[Sum]:
    """Return the sums over several ranks of what these sets of stages share, each lane's, in the order of all."""
    sums = []
    for stages in sorted(shared):
        for lane in range(len(lanes.blocks[stages[0]][0])):
            ranks = tuple(sorted({block[lane] for stage in stages for block in lanes.blocks[stage]}))
            sums += [Sum(stages, ranks)] if len(ranks) > 1 else []
    if not sums:
        return []
    calls = [_calls(lanes, rank, [parse_action(text) for text in order]) for rank, order in enumerate(plan.orders)]
    sums = [sums[i] for i in _Run(plan, calls, sums, stands=False).ready()]
    while stuck := [one for one in _Run(plan, calls, sums, stands=True).stuck() if not one.late]:
        for one in stuck:
            one.late = True
    return sums


def last_message(order: Sequence[Action]) -> int:
    """Return the place of a rank's last message, -1 where it has none."""
    return max((i for i, action in enumerate(order) if action.kind in SENDS | RECEIVES), default=-1)


def _calls(lanes: Lanes, rank: int, order: Sequence[Action]) -> list[Call]:
    """Return a rank's calls that may stand, and where stages and messages end."""
    found: list[Call] = []
    last = last_message(order)
    for place, action in enumerate(order):
        stage, peer, k = action.stage, action.peer, action.microbatch
        if action.kind in SENDS:
            message = (action.kind is Kind.SEND_F, stage, peer, k)
            found += [("send", other, message) for other in lanes.receivers(stage, peer, k, rank)]
        elif action.kind in RECEIVES:
            found.append(("receive", lanes.sender(peer, stage, k, rank), (action.kind is Kind.RECV_F, peer, stage, k)))
        elif action.kind is Kind.REDUCE:
            found.append(("end", stage, ()))
        if place == last:
            found.append(("end", MESSAGES, ()))
    return found


@dataclass(slots=True)
class _Rank:
    """Where one rank is: its calls still to come, what its sums wait for, and those that it stands at or has ready."""

    calls: deque[Call]
    waiting: dict[int, set[int]]
    before: deque[int] = field(default_factory=deque)


class _Run:
    """The orders of all ranks, run with every message waiting for its other end, and sums too if they stand."""

    def __init__(self, plan: Plan, calls: Sequence[Sequence[Call]], sums: Sequence[Sum], *, stands: bool) -> None:
        self._sums, self._stands = sums, stands
        self._came = [0] * len(sums)
        self._order: list[int] = []
        self._ranks = []
        for rank, own in enumerate(calls):
            waiting = {
                i: {s for s in one.stages if rank in plan.stages[s].ranks} | ({MESSAGES} if one.late else set())
                for i, one in enumerate(sums)
                if rank in one.ranks
            }
            self._ranks.append(_Rank(deque(own), waiting))
        moving = set(range(len(calls)))
        while moving:
            moving = {other for rank in sorted(moving) for other in self._moves(rank)}

    def ready(self) -> list[int]:
        """Return the numbers of all sums in the order in which their last ranks came to them."""
        return [*self._order, *(i for i in range(len(self._sums)) if i not in self._order)]

    def stuck(self) -> list[Sum]:
        """Return the sums that ranks stand at for ever."""
        return [self._sums[i] for i in sorted({rank.before[0] for rank in self._ranks if rank.before})]

    def _moves(self, number: int) -> set[int]:
        """Let a rank do what it can; returns the others that may go on then."""
        rank, moved = self._ranks[number], set[int]()
        while rank.calls or rank.before or (self._stands and rank.waiting):
            if rank.before:
                members = self._sums[rank.before[0]].ranks
                if any(list(self._ranks[m].before)[:1] != [rank.before[0]] for m in members):
                    break
                for member in members:
                    self._ranks[member].before.popleft()
                moved |= set(members)
            elif not rank.calls:  # what no REDUCE has started starts at the step's end
                rank.before += rank.waiting
                rank.waiting.clear()
            elif rank.calls[0][0] == "end":
                self._ends(rank, rank.calls.popleft()[1])
            elif not self._meets(number):
                break
            else:
                moved.add(rank.calls.popleft()[1])
        return moved

    def _meets(self, number: int) -> bool:
        """Take a message's call from its other end, if that one is there."""
        what, other, message = self._ranks[number].calls[0]
        peer, answer = self._ranks[other], ("receive" if what == "send" else "send", number, message)
        if peer.before or not peer.calls or peer.calls[0] != answer:
            return False
        peer.calls.popleft()
        return True

    def _ends(self, rank: _Rank, stage: int) -> None:
        """Start the sums whose turn it is on a rank when a stage, or its messages, have ended."""
        for i, stages in list(rank.waiting.items()):
            stages.discard(stage)
            if not stages and not self._stands:
                del rank.waiting[i]
                self._came[i] += 1
                self._order += [i] if self._came[i] == len(self._sums[i].ranks) else []
        while self._stands and rank.waiting and not next(iter(rank.waiting.values())):
            rank.before.append(next(iter(rank.waiting)))
            del rank.waiting[rank.before[-1]]
