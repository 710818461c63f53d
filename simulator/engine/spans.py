"""From times to a `Timeline`: spans of actions and messages, and the points of each rank's memory."""

import numpy as np

from simulator.actions import Action, Kind
from simulator.engine.event_times import EventTimes
from simulator.engine.memory import Memory
from simulator.engine.order_arrays import OFFLOAD, REDUCE, RELOAD, SEND_F
from simulator.timeline import STREAMS, Span, Timeline


def timeline(times: EventTimes, memory: Memory) -> Timeline:
    """Return the timeline of all actions; messages appear whether or not the orders are lowered.

    The two of an overlapped pair follow one another within the pair's time.
    """
    structure = times.structure
    arrays = structure.arrays
    own = np.flatnonzero(arrays.code < SEND_F)
    events = structure.wiring.event_of[own]
    beside = {OFFLOAD: "offload", RELOAD: "reload", REDUCE: "collective"}
    spans = [
        Span(arrays.actions[i], rank, beside.get(code, "compute"), start, end)
        for i, rank, code, start, end in zip(
            own.tolist(),
            arrays.rank[own].tolist(),
            arrays.code[own].tolist(),
            times.event_start[events].tolist(),
            times.event_end[events].tolist(),
            strict=True,
        )
    ]
    spans += _messages(times)
    spans.sort(key=lambda span: (span.rank, STREAMS.index(span.stream), span.start_ns))
    num_ranks = structure.schedule.graph.num_ranks
    return Timeline(num_ranks, tuple(spans), tuple(memory.points(rank) for rank in range(num_ranks)))


def _messages(times: EventTimes) -> list[Span]:
    arrays, messages = times.structure.arrays, times.structure.wiring.messages
    source, target = messages.source, messages.target
    columns = (
        messages.backward, arrays.stage[source], arrays.stage[target], messages.microbatch, messages.piece,
        arrays.rank[source], arrays.rank[target], *times.sent, *times.received,
    )  # fmt: skip
    spans = []
    for back, stage, peer, k, piece, sender, receiver, *moments in zip(*(c.tolist() for c in columns), strict=True):
        send = Action(Kind.SEND_B if back else Kind.SEND_F, stage, k, piece, peer)
        receive = Action(Kind.RECV_B if back else Kind.RECV_F, peer, k, piece, stage)
        spans.append(Span(send, sender, "send", moments[0], moments[1]))
        spans.append(Span(receive, receiver, "receive", moments[2], moments[3]))
    return spans
