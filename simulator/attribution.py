"""Why a measured step took another time than predicted: compute, communication, waiting and Python.

The step of a rank lasts from the first start to the last end over all ranks. Each of its instants counts once, under
the first of these that holds:

- predicted: ``compute`` while F, B, I, W, R or OPT runs, less the host time of messages that F, B and I were priced
  with; ``communication`` is that time, while a REDUCE runs, and while the message that ends the idle time is under way;
  ``waiting`` is the rest. Python takes nothing.
- measured: ``communication`` in a call that sends, that posts a receive or that sums gradients, also inside an OPT, and
  in the wait for a message from the moment at which its SEND began; ``waiting`` in such a wait before that moment,
  before the rank's first span and after its last; ``compute`` in an action; ``python`` between two spans.

So the differences of the four add up to that of the step time, on each rank. Leaves out whose fault it is that a sum of
gradients lasts: the wait for the slowest replica is communication. On a GPU spans are those of its stream, a wait is
time in which the stream waits for a message, ``python`` that in which it has nothing to do. Between hosts the
moment of a SEND is as exact as their clocks.
"""

from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from simulator.actions import RECEIVES, SENDS, Action, Kind, receive_of
from simulator.timeline import Span, Timeline

Interval = tuple[int, int]
Calls = Mapping[Action, int]
"""Host time in ns of a SEND or RECV that a prediction counts into its stage's F, B or I."""

NO_CALLS: Calls = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Parts:
    """Nanoseconds of a rank's step, or of a difference between two."""

    compute: int
    communication: int
    waiting: int
    python: int

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return self.compute + self.communication + self.waiting + self.python

    def minus(self, other: "Parts") -> "Parts":
        """Return the difference, part by part."""
        return Parts(
            self.compute - other.compute,
            self.communication - other.communication,
            self.waiting - other.waiting,
            self.python - other.python,
        )


@dataclass(frozen=True, slots=True)
class Drift:
    """What all actions of one kind and stage took, in ns summed over ranks and micro-batches."""

    stage: int
    kind: Kind
    num_actions: int
    predicted_ns: int
    measured_ns: int

    @property
    def difference_ns(self) -> int:
        """Measured minus predicted."""
        return self.measured_ns - self.predicted_ns


@dataclass(frozen=True, slots=True)
class Attribution:
    """A measured step against the predicted one.

    Attributes
    ----------
    per_rank : tuple of Parts
        Measured minus predicted; each adds up to the difference of the step times.
    rank : int
        The rank whose own work explains most of the difference: the one that waits least longer (or shorter) than
        predicted, the lowest of several.
    drifts : tuple of Drift
        Kinds of action by stage, those furthest from the prediction first.
    """

    per_rank: tuple[Parts, ...]
    rank: int
    drifts: tuple[Drift, ...]

    @property
    def parts(self) -> Parts:
        """The difference on `rank`."""
        return self.per_rank[self.rank]


def attribute(predicted: Timeline, measured: Timeline, calls: Calls = NO_CALLS) -> Attribution:
    """Divide the difference between two timelines of one plan.

    Parameters
    ----------
    predicted : Timeline
        Of the engine.
    measured : Timeline
        Of the executor: calls and waits follow each other on a rank; a receive has a span for the call that posts it
        and a later one for the wait.
    calls : mapping of Action to int
        What of the predicted compute is host time of messages.
    """
    pairs = zip(measured_parts(measured), predicted_parts(predicted, calls), strict=True)
    per_rank = tuple(after.minus(before) for after, before in pairs)
    rank = min(range(len(per_rank)), key=lambda r: abs(per_rank[r].waiting))
    return Attribution(per_rank, rank, _drifts(predicted, measured, calls))


def predicted_parts(timeline: Timeline, calls: Calls = NO_CALLS) -> tuple[Parts, ...]:
    """Return how each rank spends a predicted step."""
    first, last = _ends(timeline.spans)
    rows = []
    for own in timeline.spans_by_rank:
        compute = sorted(_intervals(own, "compute"))
        under_way = [_awaited(span, compute) for span in own if span.stream == "receive"]
        busy, communication, waiting = _lengths((compute, _intervals(own, "collective") + under_way), first, last)
        host = min(busy, sum(calls.get(span.action, 0) for span in own))
        rows.append(Parts(busy - host, communication + host, waiting, 0))
    return tuple(rows)


def measured_parts(timeline: Timeline) -> tuple[Parts, ...]:
    """Return how each rank spent a measured step."""
    first, last = _ends(timeline.spans)
    sent = {receive_of(span.action): span.start_ns for span in timeline.spans if span.action.kind in SENDS}
    rows = []
    for own in timeline.spans_by_rank:
        started, ended = _ends(own) if own else (last, last)
        waits = _waits(own, sent)
        calls = _intervals(own, "send") + _intervals(own, "collective")
        calls += [(span.start_ns, span.end_ns) for span in own if span.stream == "receive" and span not in waits]
        calls += [(moment, span.end_ns) for span, moment in waits.items()]
        idle = [(span.start_ns, moment) for span, moment in waits.items()] + [(first, started), (ended, last)]
        communication, waiting, busy, python = _lengths((calls, idle, _intervals(own, "compute")), first, last)
        rows.append(Parts(busy, communication, waiting, python))
    return tuple(rows)


def _waits(own: Sequence[Span], sent: Mapping[Action, int]) -> dict[Span, int]:
    """Return the last span of each receive, the wait, and the moment in it from which the message is under way."""
    last = {span.action: span for span in sorted(own, key=lambda s: s.start_ns) if span.action.kind in RECEIVES}
    return {span: min(max(sent[action], span.start_ns), span.end_ns) for action, span in last.items()}


def _awaited(message: Span, compute: Sequence[Interval]) -> Interval:
    """Return the part of a message's way after the rank's last action that starts before it arrives.

    Empty when that action is still running then: the rank was not idle because of this message.
    """
    before = bisect_left(compute, (message.end_ns,))
    free = compute[before - 1][1] if before else message.start_ns
    return min(max(free, message.start_ns), message.end_ns), message.end_ns


def _lengths(layers: Sequence[Sequence[Interval]], first: int, last: int) -> list[int]:
    """Return for how long each layer is the first that covers an instant of [first, last], then no layer."""
    none = len(layers)
    covering, found = [0] * none, [0] * (none + 1)
    changes = [(start, layer, 1) for layer, row in enumerate(layers) for start, end in row if start < end]
    changes += [(end, layer, -1) for layer, row in enumerate(layers) for start, end in row if start < end]
    now = first
    for time, layer, change in sorted(changes):
        found[next((i for i, count in enumerate(covering) if count), none)] += time - now
        now = time
        covering[layer] += change
    found[none] += last - now
    return found


def _drifts(predicted: Timeline, measured: Timeline, calls: Calls) -> tuple[Drift, ...]:
    planned, took = _totals(predicted), _totals(measured)
    for span in predicted.spans:
        key = _caller(span.action, planned)
        if key and span.action in calls:
            count, total = planned[key]
            planned[key] = count, max(0, total - calls[span.action])
    found = [Drift(*key, took[key][0], planned[key][1], took[key][1]) for key in took if key in planned]
    return tuple(sorted(found, key=lambda d: (-abs(d.difference_ns), d.stage, d.kind)))


def _caller(message: Action, known: Container[tuple[int, Kind]]) -> tuple[int, Kind] | None:
    """Return the stage and kind of the actions that a message of their stage is priced with."""
    kinds = (Kind.F,) if message.kind in (Kind.SEND_F, Kind.RECV_F) else (Kind.B, Kind.I)
    return next(((message.stage, kind) for kind in kinds if (message.stage, kind) in known), None)


def _totals(timeline: Timeline) -> dict[tuple[int, Kind], tuple[int, int]]:
    """Return number and ns of the actions of each stage and kind, without sums of gradients inside an OPT."""
    found: dict[tuple[int, Kind], tuple[int, int]] = {}
    for own in timeline.spans_by_rank:
        sums = _intervals(own, "collective")
        for span in own:
            if _stream(span) == "compute":
                key = span.action.stage, span.action.kind
                inside = [s for s in sums if span.action.kind is Kind.OPT and _within(s, span)]
                time = span.end_ns - span.start_ns - sum(end - start for start, end in inside)
                count, total = found.get(key, (0, 0))
                found[key] = count + 1, total + time
    return found


def _within(interval: Interval, span: Span) -> bool:
    return span.start_ns <= interval[0] and interval[1] <= span.end_ns


def _intervals(spans: Sequence[Span], stream: str) -> list[Interval]:
    return [(span.start_ns, span.end_ns) for span in spans if _stream(span) == stream]


def _stream(span: Span) -> str:
    """Return the stream, that of collectives for every REDUCE, also one that holds up compute."""
    return "collective" if span.action.kind is Kind.REDUCE else span.stream


def _ends(spans: Sequence[Span]) -> Interval:
    """Return the first start and the last end."""
    return min((s.start_ns for s in spans), default=0), max((s.end_ns for s in spans), default=0)
