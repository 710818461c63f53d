"""What the executor would have measured of a plan: calls one after the other on each rank, round numbers of ns.

Actions take what `DURATIONS` says of their kind, or what a test says. A gap of 1 before every call; posting a receive
takes 1, a send 2, a message is there 3 after its send began.
"""

from collections.abc import Callable

from planner.plan import Plan
from simulator.actions import RECEIVES, SENDS, Action, Kind, parse_action, receive_of
from simulator.timeline import STREAMS, Span, Timeline

DURATIONS = {Kind.F: 15, Kind.B: 25, Kind.I: 12, Kind.W: 13, Kind.R: 15, Kind.OPT: 5, Kind.REDUCE: 1}

LENGTHS = {"send": 2, "receive": 1}


def measured_by_hand(plan: Plan, length_of: Callable[[Action], int] = lambda a: DURATIONS[a.kind]) -> Timeline:
    orders = [[parse_action(text) for text in order] for order in plan.orders]
    spans: list[Span] = []
    sent: dict[Action, int] = {}
    clocks, places = [0] * len(orders), [0] * len(orders)
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        before = list(places)
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                action = order[places[rank]]
                needed = [a for a in order[: places[rank]] if a.kind in RECEIVES and feeds(a, action)]
                if any(a not in sent for a in needed):
                    break
                for receive in needed:
                    start = clocks[rank] + 1
                    clocks[rank] = max(start, sent[receive] + 3)
                    spans.append(Span(receive, rank, "receive", start, clocks[rank]))
                start = clocks[rank] + 1
                if action.kind in SENDS:
                    sent[receive_of(action)] = start
                length = LENGTHS[stream_of(action)] if action.kind in SENDS | RECEIVES else length_of(action)
                clocks[rank] = start + length
                spans.append(Span(action, rank, stream_of(action), start, clocks[rank]))
                places[rank] += 1
        assert places != before, "the plan's orders wait for each other"
    first = min(span.start_ns for span in spans)
    shifted = [Span(s.action, s.rank, s.stream, s.start_ns - first, s.end_ns - first) for s in spans]
    return Timeline(len(orders), tuple(sorted(shifted, key=lambda s: (s.rank, STREAMS.index(s.stream), s.start_ns))))


def feeds(receive: Action, action: Action) -> bool:
    kinds = (Kind.F,) if receive.kind is Kind.RECV_F else (Kind.B, Kind.I)
    return (action.stage, action.microbatch) == (receive.stage, receive.microbatch) and action.kind in kinds


def stream_of(action: Action) -> str:
    if action.kind in SENDS:
        return "send"
    if action.kind in RECEIVES:
        return "receive"
    return "collective" if action.kind is Kind.REDUCE else "compute"
