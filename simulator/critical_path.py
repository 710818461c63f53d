"""The critical path of a step: actions and transfers, one behind the other, that take all of its time.

Found backwards from what ends last: what ended at the moment a link of the chain starts and is able to
hold it up (the rank's action before it, an input, a message on a stream of its ranks, a member of a reduction,
for OPT anything in the step). Of several the rank's own action is taken. Where nothing ended just then (measured
timelines have such moments, and ranks that agree on a norm) a wait bridges the time. So the links' times
add up to the step time. Leaves out other chains that are as long.
"""

from collections import deque
from dataclasses import dataclass

from simulator.actions import COMPUTE, RECEIVES, SENDS, Action, Kind
from simulator.arrivals import Arrivals
from simulator.schedule import Schedule
from simulator.timeline import Span, Timeline
from simulator.validation.rendezvous import partner


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One link of the chain.

    Attributes
    ----------
    what : str
        ``action``, ``transfer`` or ``wait``.
    action : Action
        For a transfer its SEND; for a wait what waits.
    rank : int
        For a transfer the one that sends.
    start_ns, end_ns : int
    """

    what: str
    action: Action
    rank: int
    start_ns: int
    end_ns: int

    @property
    def time_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


def critical_path(schedule: Schedule, timeline: Timeline) -> tuple[ChainLink, ...]:
    """Return the chain of a timed schedule, from the start of the step to its end.

    Raises
    ------
    InvalidInput
        When the timeline lacks an action of the schedule.
    """
    return tuple(reversed(_Search(schedule, timeline).links())) if timeline.spans else ()


class _Search:
    """Looks for what ended at some moment and could hold up what starts then."""

    def __init__(self, schedule: Schedule, timeline: Timeline) -> None:
        self.arrivals = Arrivals(schedule, timeline)
        self.spans = [s for s in timeline.spans if s.action.kind not in SENDS | RECEIVES]
        self.begin_ns = min(span.start_ns for span in timeline.spans)
        self.messages = {s.action: s for s in timeline.spans if s.action.kind in SENDS | RECEIVES}
        self.maker: dict[Action, Span] = {}
        self.ending: dict[int, list[Span]] = {}
        for span in timeline.spans:
            self.ending.setdefault(span.end_ns, []).append(span)
        self.before: dict[Span, Span] = {}
        latest: dict[tuple[int, str], Span] = {}
        for span in timeline.spans:
            stream = (span.rank, span.stream)
            if stream in latest:
                self.before[span] = latest[stream]
            latest[stream] = span

    def links(self) -> list[ChainLink]:
        """Walk back from the last end."""
        span = max(self.spans, key=lambda s: (s.end_ns, -s.rank))
        links = [ChainLink("action", span.action, span.rank, span.start_ns, span.end_ns)]
        while links[-1].start_ns > self.begin_ns:
            now = links[-1].start_ns
            path = self._held_up_by(span)
            ended = path[-1].end_ns if path else self.begin_ns
            if ended < now:
                links.append(ChainLink("wait", span.action, span.rank, ended, now))
            links += map(self._link, path)
            if not path:
                break
            span = path[-1]
        return links

    def _held_up_by(self, span: Span) -> list[Span]:
        """Return spans, each held up by the next, up to one that takes time: through those of no length."""
        came_from: dict[Span, Span] = {}
        look = deque([span])
        while look:
            here = look.popleft()
            for found in self._candidates(here):
                if found in came_from or found == span:
                    continue
                came_from[found] = here
                if found.start_ns < found.end_ns:
                    path = [found]
                    while came_from[path[-1]] != span:
                        path.append(came_from[path[-1]])
                    return path[::-1]
                look.append(found)
        last = self._last_before(span.start_ns)
        return [last] if last else []

    def _last_before(self, now: int) -> Span | None:
        lasting = (s for s in self.spans if s.start_ns < s.end_ns < now)
        return max(lasting, key=lambda s: (s.end_ns, -s.rank), default=None)

    def _link(self, span: Span) -> ChainLink:
        if span.action.kind in SENDS:
            return ChainLink("transfer", span.action, span.rank, span.start_ns, span.end_ns)
        if span.action.kind in RECEIVES:
            send = self.messages[partner(span.action)]
            return ChainLink("transfer", send.action, send.rank, span.start_ns, span.end_ns)
        return ChainLink("action", span.action, span.rank, span.start_ns, span.end_ns)

    def _candidates(self, span: Span) -> list[Span]:
        """Return what can hold up a span and ended when it starts, the likeliest first."""
        now = span.start_ns
        made = self.maker.get(span.action)
        found = [each for each in (made, self.before.get(span)) if each and each.end_ns == now]
        ranks = {span.rank}
        if span.action.kind in COMPUTE:
            found += self._inputs(span)
        elif span.action.kind in SENDS | RECEIVES:
            ranks.add(self.messages[partner(span.action)].rank)
        elif span.action.kind is Kind.REDUCE:
            ranks |= {s.rank for s in self.spans if s.action == span.action}
        elif span.action.kind is Kind.OPT:
            ranks |= {s.rank for s in self.spans}
        return found + [s for s in self.ending.get(now, ()) if s.rank in ranks and s != span]

    def _inputs(self, span: Span) -> list[Span]:
        found = []
        for each in self.arrivals.of(span.action):
            if each.arrived_ns == span.start_ns:
                receive = self.messages.get(partner(each.send)) if each.send else None
                if receive:
                    self.maker[receive.action] = each.made
                found.append(receive or each.made)
        return found
