"""Events and arrivals of a schedule: the common part of all point-to-point modes, and mode `latency`.

Compute actions are events on the compute stream of their rank. In mode `latency` a message is a delay
between two events: it occupies nothing, and any number of them travel at once. The other modes put
messages on streams (`transfers`), `closing` adds what ends a step.
"""

from dataclasses import dataclass, field

import numpy as np

from simulator.engine.amounts import ALONE_B, ALONE_I, TableRows
from simulator.engine.event_graph import InputRows
from simulator.engine.flows import Flows, Messages
from simulator.engine.order_arrays import OFFLOAD, OPT, REDUCE, RELOAD, B, Bools, I, Ints, OrderArrays


@dataclass(slots=True, eq=False)
class EventWiring:
    """Events and arrivals, as they are collected.

    Attributes
    ----------
    table_rows : TableRows
    event_of : array of int64
        Event of each action; -1 for those that have none.
    sent_by, received_by : arrays of int64
        Events during which each message leaves and comes in, in the modes that have such events.
    pairs : pair of arrays of int64, optional
        Actions that run overlapped: the F of each pair, and the backward that directly follows it.
    """

    arrays: OrderArrays
    flow: Flows
    table_rows: TableRows
    event_of: Ints
    pairs: tuple[Ints, Ints] | None = None
    sent_by: Ints | None = None
    received_by: Ints | None = None
    _rows: list[Ints] = field(default_factory=list)
    _columns: list[Ints] = field(default_factory=list)
    _ranks: list[Ints] = field(default_factory=list)
    _first: list[Bools] = field(default_factory=list)
    _arrivals: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    num_events: int = 0

    @property
    def messages(self) -> Messages:
        """Messages between ranks."""
        return self.flow.messages

    @property
    def rows(self) -> Ints:
        """Row of each event in the table of times."""
        return np.concatenate(self._rows)

    @property
    def columns(self) -> Ints:
        """Column of each event in the table of times."""
        return np.concatenate(self._columns)

    @property
    def ranks(self) -> Ints:
        """Rank whose speed each event has, -1 for none."""
        return np.concatenate(self._ranks)

    @property
    def first(self) -> Bools:
        """Whether each event is the first of its stream."""
        return np.concatenate(self._first)

    def add_events(self, rows: Ints, first: Bools, columns: Ints | None = None, ranks: Ints | None = None) -> Ints:
        """Add events, stream by stream, and return their numbers."""
        count = len(rows)
        self._rows.append(rows)
        self._first.append(first)
        self._columns.append(np.zeros(count, np.int64) if columns is None else columns)
        self._ranks.append(np.full(count, -1) if ranks is None else ranks)
        self.num_events += count
        return np.arange(self.num_events - count, self.num_events)

    def add_arrivals(self, source: Ints, target: Ints, rows: Ints | None = None) -> None:
        """Let events wait for others, and for a time of the table after them."""
        delay = np.full(len(source), self.table_rows.zero_row) if rows is None else rows
        self._arrivals.append((source, target, delay))

    def arrivals(self) -> tuple[InputRows, Ints]:
        """Return all arrivals, and the row of each one's delay."""
        source, target, rows = (np.concatenate([a[i] for a in self._arrivals]) for i in range(3))
        return InputRows(self.leaves(source), self.enters(target)), rows

    def leaves(self, events: Ints) -> Ints:
        """For each event the one with which it ends: of a pair's F that is the backward."""
        return self._instead(events, 0, 1)

    def enters(self, events: Ints) -> Ints:
        """For each event the one with which it starts: of a pair's backward that is the F."""
        return self._instead(events, 1, 0)

    def _instead(self, events: Ints, each: int, other: int) -> Ints:
        if self.pairs is None:
            return events
        instead = np.arange(self.num_events)
        instead[self.event_of[self.pairs[each]]] = self.event_of[self.pairs[other]]
        return instead[events]

    def compute_actions(self) -> Ints:
        """Actions that are on a compute stream, in order."""
        return np.flatnonzero((self.arrays.code < REDUCE) | (self.arrays.code == OPT))

    def action_rows(self, actions: Ints) -> Ints:
        """Row of each of some actions; I and B without the recompute where the orders hold an R."""
        code = self.arrays.code[actions]
        apart = self.flow.recompute_of[actions] >= 0
        if apart.any():
            code = np.where(apart & (code == I), ALONE_I, np.where(apart & (code == B), ALONE_B, code))
        return self.table_rows.row(code, self.arrays.stage[actions])

    def paced(self, actions: Ints) -> Ints:
        """Rank whose speed each of some actions has; a REDUCE goes at the speed of links."""
        return np.where(self.arrays.code[actions] == REDUCE, -1, self.arrays.rank[actions])

    def before(self) -> Ints:
        """For each action the last event of its rank's compute stream up to it; -1 where there is none.

        To be asked before collectives have events.
        """
        here = (self.event_of >= 0) & ~np.isin(self.arrays.code, (OFFLOAD, RELOAD))
        latest = np.maximum.accumulate(np.where(here, self.event_of, -1))
        owner = np.maximum.accumulate(np.where(here, self.arrays.rank, -1))
        return np.where(owner == self.arrays.rank, latest, -1)


def wire_local(wiring: EventWiring) -> None:
    """Let actions wait for what they need of their own rank, or of their own stage, where no order implies it."""
    source, target = wiring.flow.local
    wiring.add_arrivals(wiring.event_of[source], wiring.event_of[target])


def wire_latency(wiring: EventWiring, compute: Ints) -> None:
    """Put compute actions on their streams, with messages as delays between them."""
    add_compute(wiring, compute)
    messages = wiring.messages
    source, target = wiring.event_of[messages.source], wiring.event_of[messages.target]
    wiring.add_arrivals(source, target, wiring.table_rows.edge_row + messages.edge)


def add_compute(wiring: EventWiring, compute: Ints) -> None:
    """Put compute actions, and nothing else, on the compute streams."""
    ranks = wiring.arrays.rank[compute]
    wiring.event_of[compute] = wiring.add_events(
        wiring.action_rows(compute),
        starts(ranks),
        wiring.table_rows.column(wiring.arrays)[compute],
        wiring.paced(compute),
    )


def starts(streams: Ints) -> Bools:
    """Whether each entry is the first of a run of equal ones."""
    return np.append(True, streams[1:] != streams[:-1])[: len(streams)]
