"""Modes in which messages occupy streams, and the messages of lowered orders.

- `blocking`: a message occupies the compute stream of both ends for `p2p_ns`: the sender's right after
  its action (to several stages: by stage, then by name), and then, when it has left, the receiver's right
  before the action that reads it (from several stages: by stage, then by name). A hop so takes twice the
  time of `latency` and hides behind nothing. This reading gives 1858 ms for interleaved 1F1B and 1785 ms
  for ZB-1p in a case that was measured (16 ranks, 48 micro-batches; 1664 and 1714 ms in mode `latency`);
  where lowered orders post transfers makes no difference.
- `links`: a message occupies the directed link between its two ranks for `p2p_ns`, and nothing else. A
  link carries one message at a time, in the order in which its sender issues them, and holds up all that
  follow the one at its head. A transfer starts when its sender has issued it, its link is free and its
  receiver has posted it. Lowered orders issue SEND and post RECV when the compute action before them has
  ended; orders without transfers issue a send as its action ends and have posted all receives from the start.

- `nccl`: as `links`, but both directions between two ranks share one communicator, as in the executor: what is
  posted there holds up all that follow it until both ends have come to it. Orders whose ends issue in different
  orders wait for ever, and are refused. It needs lowered orders.

Leaves out contention between different links, the few SMs that a posted receive takes from compute, and time that
depends on what else travels.
"""

from itertools import chain, compress
from operator import attrgetter

import numpy as np

from costmodel.errors import InvalidInput
from simulator.engine.order_arrays import RECV_B, RECV_F, SEND_B, SEND_F, Bools, Ints, OrderArrays
from simulator.engine.wiring import EventWiring, add_compute, starts


def wire_blocking(wiring: EventWiring, compute: Ints) -> None:
    """Put compute actions on their streams, each between its receives and its sends."""
    arrays, messages, table_rows = wiring.arrays, wiring.messages, wiring.table_rows
    num_messages, num_compute = len(messages.source), len(compute)
    by_source = np.lexsort((messages.piece, messages.microbatch, arrays.stage[messages.source], messages.target))
    anchor = np.concatenate([messages.target[by_source], compute, messages.source])
    phase = np.repeat([0, 1, 2], [num_messages, num_compute, num_messages])
    order = np.lexsort((phase, anchor))
    travel = table_rows.edge_row + messages.edge
    rows = np.concatenate([travel[by_source], wiring.action_rows(compute), travel])
    columns = np.where(phase == 1, table_rows.column(arrays)[anchor], 0)
    ranks = arrays.rank[anchor]
    events = np.empty(len(order), np.int64)
    first = starts(ranks[order])
    events[order] = wiring.add_events(
        rows[order], first, columns[order], np.where(phase == 1, wiring.paced(anchor), -1)[order]
    )
    wiring.received_by = np.empty(num_messages, np.int64)
    wiring.received_by[by_source] = events[:num_messages]
    wiring.event_of[compute] = events[num_messages : num_messages + num_compute]
    wiring.sent_by = events[num_messages + num_compute :]
    wiring.add_arrivals(wiring.sent_by, wiring.received_by)


def wire_links(wiring: EventWiring, compute: Ints) -> None:
    """Put compute actions on their streams and messages on their links."""
    add_compute(wiring, compute)
    arrays, messages = wiring.arrays, wiring.messages
    link = arrays.rank[messages.source] * arrays.graph.num_ranks + arrays.rank[messages.target]
    found = matched(wiring)
    issued = np.arange(len(link)) if found is None else _issued(wiring, *found)[0]
    _carry(wiring, link, issued, found)


def wire_nccl(wiring: EventWiring, compute: Ints) -> None:
    """Put compute actions on their streams and messages on the communicators of each two ranks."""
    add_compute(wiring, compute)
    arrays, messages = wiring.arrays, wiring.messages
    found = matched(wiring)
    if found is None:
        if len(messages.source):
            raise InvalidInput("p2p nccl follows the SEND and RECV of the orders, which have none; lower the schedule")
        return
    sent, received = _issued(wiring, *found)
    source, target = arrays.rank[messages.source], arrays.rank[messages.target]
    pair = np.minimum(source, target) * arrays.graph.num_ranks + np.maximum(source, target)
    first, second = (np.where(source < target, *ends) for ends in ((sent, received), (received, sent)))
    events = _carry(wiring, pair, first, found)
    order = np.lexsort((second, pair))  # as the other rank issues them; where the two differ, both wait for ever
    follows = ~starts(pair[order])[1:]
    wiring.add_arrivals(events[order][:-1][follows], events[order][1:][follows])


def _carry(wiring: EventWiring, link: Ints, issued: Ints, found: tuple[Ints, Ints] | None) -> Ints:
    """Put messages on links, one at a time in the order in which they are issued; returns their events."""
    messages = wiring.messages
    order = np.lexsort((issued, link))
    events = np.empty(len(link), np.int64)
    events[order] = wiring.add_events((wiring.table_rows.edge_row + messages.edge)[order], starts(link[order]))
    wiring.sent_by = wiring.received_by = events
    wiring.add_arrivals(wiring.event_of[messages.source], events)
    wiring.add_arrivals(events, wiring.event_of[messages.target])
    if found is not None:
        actions, which = found
        before, after = wiring.before()[actions], events[which]
        said = (before >= 0) & (before != wiring.event_of[messages.source[which]])
        wiring.add_arrivals(before[said], after[said])
    return events


def _issued(wiring: EventWiring, actions: Ints, which: Ints) -> tuple[Ints, Ints]:
    """Return the place of each message's SEND in its sender's order, and of its RECV in its receiver's."""
    code = wiring.arrays.code[actions]
    places = []
    for kinds, name in (((RECV_F, RECV_B), "RECV"), ((SEND_F, SEND_B), "SEND")):
        chosen = np.isin(code, kinds)
        issued = np.full(len(wiring.messages.source), -1)
        issued[which[chosen]] = actions[chosen]
        places.append(issued)
        if (issued < 0).any():
            source, target = (end[np.argmin(issued)] for end in (wiring.messages.source, wiring.messages.target))
            raise InvalidInput(
                f"the orders hold transfers, but no {name} from {wiring.arrays.actions[source]} to "
                f"{wiring.arrays.actions[target]}; lower the whole schedule, or take all transfers out"
            )
    return places[1], places[0]


def matched(wiring: EventWiring) -> tuple[Ints, Ints] | None:
    """Return the SEND and RECV actions of lowered orders and the message of each; None without any.

    Raises
    ------
    InvalidInput
        When a transfer carries no message that is needed.
    """
    arrays, messages = wiring.arrays, wiring.messages
    transfers = arrays.code >= SEND_F
    actions = np.flatnonzero(transfers)
    if not len(actions):
        return None
    names = attrgetter("stage", "peer", "microbatch", "slice_index")
    fields = chain.from_iterable(map(names, compress(arrays.actions, transfers.tolist())))
    own, peer, microbatch, piece = np.fromiter(fields, np.int64, 4 * len(actions)).reshape(-1, 4).T
    code = arrays.code[actions]
    sends, back = np.isin(code, (SEND_F, SEND_B)), np.isin(code, (SEND_B, RECV_B))
    ends = np.where(sends, own, peer), np.where(sends, peer, own)
    wanted = _keys(arrays, back, *ends, microbatch, piece)
    stages = arrays.stage[messages.source], arrays.stage[messages.target]
    keys = _keys(arrays, messages.backward, *stages, messages.microbatch, messages.piece)
    order = np.argsort(keys)
    place = np.searchsorted(keys[order], wanted)
    known = np.append(keys[order], -1)[place] == wanted
    found = np.append(order, 0)[place]
    if known.all():
        known = arrays.rank[np.where(sends, messages.source[found], messages.target[found])] == arrays.rank[actions]
    if not known.all():
        stray = actions[int(np.argmin(known))]
        raise InvalidInput(
            f"{arrays.actions[stray]} on rank {arrays.rank[stray]} carries nothing that another rank needs; drop it"
        )
    return actions, found


def _keys(arrays: OrderArrays, back: Bools, source: Ints, target: Ints, microbatch: Ints, piece: Ints) -> Ints:
    """Return a number for each name of a message."""
    stages, schedule = arrays.graph.num_stages, arrays.schedule
    known = (source >= 0) & (source < stages) & (target >= 0) & (target < stages)
    key = ((back * stages + source) * stages + target) * schedule.num_microbatches + microbatch
    return np.where(known, key * (schedule.num_slices + 1) + piece + 1, -2)
