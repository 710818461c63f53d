"""What ends a step: gradient reductions and optimizer steps, in three modes.

A REDUCE is one collective over the replicas of a stage. It starts when the last of them has issued it:
when the actions before it in that rank's order have ended, and the collectives issued there before. By
default it overlaps compute (stream ``collective``); otherwise it occupies the compute stream of all its
ranks. OPT follows the order of its rank and the REDUCE of its stage.

- `independent`: nothing else.
- `global-norm`: no OPT starts before every gradient of every rank is reduced, as clipping by the global
  norm needs. The all-reduce of the norm itself (a few bytes) takes no time here.
- `post-validated` (Zero Bubble Pipeline Parallelism, Qi et al. 2024, section 4): the norm is reduced
  along the stage graph; a stage adds its own part to what its predecessors send (the edge's `p2p_ns`
  where ranks differ) and updates at once. The full result returns in the next step's warm-up; neither
  that nor a rollback after a failed validation is modelled.

In the last two modes the engine takes the OPTs of a rank behind its other actions: anywhere else they
would wait on themselves.
"""

import numpy as np

from simulator.engine.order_arrays import OPT, REDUCE, B, I, Ints, W
from simulator.engine.wiring import EventWiring, starts

OPTIMIZER_MODES = ("independent", "global-norm", "post-validated")


def wire_reductions(wiring: EventWiring) -> None:
    """Add the REDUCE actions."""
    reduces = np.flatnonzero(wiring.arrays.code == REDUCE)
    if not len(reduces):
        return
    arrays = wiring.arrays
    _, which = np.unique(np.stack([arrays.stage, arrays.microbatch])[:, reduces], axis=1, return_inverse=True)
    which = which.ravel()
    members, before = np.unique(which, return_index=True)[1], wiring.before()[reduces]
    rows = wiring.table_rows.row(np.full(len(members), REDUCE), arrays.stage[reduces[members]])
    wiring.event_of[reduces] = wiring.add_events(rows, np.ones(len(rows), np.bool_))[which]
    events = wiring.event_of[reduces]
    wiring.add_arrivals(before[before >= 0], events[before >= 0])
    follows = ~starts(arrays.rank[reduces])[1:]
    wiring.add_arrivals(events[:-1][follows], events[1:][follows])


def wire_optimizer(wiring: EventWiring, mode: str) -> None:
    """Let each OPT wait for the REDUCE of its stage, and for what the mode asks."""
    arrays = wiring.arrays
    updates = np.flatnonzero(arrays.code == OPT)
    reduces = np.flatnonzero(arrays.code == REDUCE)
    if not len(updates):
        return
    same = (arrays.stage[reduces][:, None] == arrays.stage[updates]) & (
        arrays.rank[reduces][:, None] == arrays.rank[updates]
    )
    reduce, update = np.nonzero(same)
    wiring.add_arrivals(wiring.event_of[reduces[reduce]], wiring.event_of[updates[update]])
    if mode == "global-norm":
        _wire_barrier(wiring, updates)
    elif mode == "post-validated":
        _wire_partial_norms(wiring, updates)


def _wire_barrier(wiring: EventWiring, updates: Ints) -> None:
    computes = np.flatnonzero(wiring.arrays.code < REDUCE)
    reduces = np.flatnonzero(wiring.arrays.code == REDUCE)
    waited = wiring.event_of[np.append(_last(computes, wiring.arrays.rank[computes]), reduces)]
    barrier = wiring.add_events(np.array([wiring.table_rows.zero_row]), np.ones(1, np.bool_))
    wiring.add_arrivals(waited, np.repeat(barrier, len(waited)))
    wiring.add_arrivals(np.repeat(barrier, len(updates)), wiring.event_of[updates])


def _last(actions: Ints, owner: Ints) -> Ints:
    """Return the last action of each owner."""
    return actions[len(actions) - 1 - np.unique(owner[::-1], return_index=True)[1]]


def _wire_partial_norms(wiring: EventWiring, updates: Ints) -> None:
    arrays, graph = wiring.arrays, wiring.arrays.graph
    norms = wiring.add_events(
        np.full(graph.num_stages, wiring.table_rows.zero_row), np.ones(graph.num_stages, np.bool_)
    )
    own = np.flatnonzero(np.isin(arrays.code, (I, B, W)))
    own = _last(own, arrays.stage[own] * graph.num_ranks + arrays.rank[own])
    own = np.append(own, np.flatnonzero(arrays.code == REDUCE))
    wiring.add_arrivals(wiring.event_of[own], norms[arrays.stage[own]])
    edges = np.array([(edge.source, edge.target) for edge in graph.edges], np.int64).reshape(-1, 2)
    apart = np.array([graph.ranks[source] != graph.ranks[target] for source, target in edges], np.bool_)
    rows = np.where(apart, wiring.table_rows.edge_row + np.arange(len(edges)), wiring.table_rows.zero_row)
    wiring.add_arrivals(norms[edges[:, 0]], norms[edges[:, 1]], rows)
    for update in updates:
        into = np.flatnonzero(edges[:, 1] == arrays.stage[update])
        event = np.repeat(wiring.event_of[update], len(into))
        wiring.add_arrivals(norms[edges[into, 0]], event, rows[into])
