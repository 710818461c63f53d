"""Activations that go to host memory and come back: OFFLOAD and RELOAD.

Each rank has a stream for either direction, apart from compute and messages; a copy takes its stage's `offload_ns`. It
starts when the action before it in its rank's order has ended, the copies issued there before it in its direction have,
and what it copies is there: OFFLOAD follows its F, RELOAD its OFFLOAD. The backward waits for RELOAD. Leaves out that
both directions may share the host's memory, and ranks of one host their link.
"""

from itertools import pairwise

import numpy as np

from simulator.engine.order_arrays import OFFLOAD, RELOAD, F
from simulator.engine.wiring import EventWiring, starts


def wire_copies(wiring: EventWiring) -> None:
    """Add the OFFLOAD and RELOAD actions; to be called before collectives have events."""
    arrays, flow = wiring.arrays, wiring.flow
    if not (arrays.code == OFFLOAD).any():
        return
    before, column = wiring.before(), wiring.table_rows.column(arrays)
    for code in (OFFLOAD, RELOAD):
        copies = np.flatnonzero(arrays.code == code)
        rows = wiring.table_rows.row(arrays.code[copies], arrays.stage[copies])
        wiring.event_of[copies] = wiring.add_events(rows, starts(arrays.rank[copies]), column[copies])
        follows = copies[before[copies] >= 0]
        wiring.add_arrivals(before[follows], wiring.event_of[follows])
    forward = np.flatnonzero((arrays.code == F) & (flow.offload_of >= 0))
    chain = (forward, flow.offload_of[forward], flow.reload_of[forward], flow.backward_of[forward])
    for needed, needing in pairwise(chain):
        wiring.add_arrivals(wiring.event_of[needed], wiring.event_of[needing])
