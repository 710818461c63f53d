"""What a measured timeline says that actions and messages took.

Spans are the executor's (`simulator.attribution`): a send is the call, a receive the call that posts it and, later, the
wait for it. Leaves out why something took long, and what was planned.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.actions import RECEIVES, SENDS, Action, Kind, receive_of
from simulator.timeline import Span, Timeline

CLOSING = frozenset({Kind.OPT})
"""Actions within which sums of gradients are waited for."""
FEW = 3
"""Actions that have to be left where the first one, which may have been cold, is not counted."""


@dataclass(frozen=True, slots=True)
class MeasuredMessage:
    """A message: the call that sent it, the one that posted its receive, and the wait for it."""

    action: Action
    send: Span
    posted: Span | None
    wait: Span

    @property
    def awaited(self) -> bool:
        """Whether the receiver stood still before the message was sent."""
        return self.wait.start_ns <= self.send.start_ns


def durations_ns(timeline: Timeline) -> dict[tuple[int, Kind], list[int]]:
    """Return what the actions of each stage and kind took, without the first on each rank where others are enough."""
    rows: dict[tuple[int, int, Kind], list[int]] = {}
    for span in sorted(timeline.spans, key=lambda s: (s.rank, s.start_ns)):
        if span.stream == "compute":
            rows.setdefault((span.rank, span.action.stage, span.action.kind), []).append(_own_ns(span, timeline))
    found: dict[tuple[int, Kind], list[int]] = {}
    for (_, stage, kind), row in rows.items():
        found.setdefault((stage, kind), []).extend(row[1:] if len(row) > FEW else row)
    return found


def _own_ns(span: Span, timeline: Timeline) -> int:
    """Return a span's length without sums of gradients inside it."""
    length = span.end_ns - span.start_ns
    if span.action.kind not in CLOSING:
        return length
    inside = (
        other.end_ns - other.start_ns
        for other in timeline.spans
        if other.rank == span.rank
        and other.stream == "collective"
        and span.start_ns <= other.start_ns
        and other.end_ns <= span.end_ns
    )
    return length - sum(inside)


def messages(timeline: Timeline) -> list[MeasuredMessage]:
    """Return the messages of a step whose two ends were both measured."""
    sent = {receive_of(span.action): span for span in timeline.spans if span.action.kind in SENDS}
    rows: Mapping[Action, list[Span]] = {action: [] for action in sent}
    for span in timeline.spans:
        if span.action.kind in RECEIVES and span.action in rows:
            rows[span.action].append(span)
    found = []
    for action, spans in rows.items():
        ordered = sorted(spans, key=lambda s: s.start_ns)
        if ordered:
            posted = ordered[0] if len(ordered) > 1 else None
            found.append(MeasuredMessage(action, sent[action], posted, ordered[-1]))
    return found
