"""From when to when actions hold memory, whatever they take: moments of a schedule's actions.

`simulator.engine.memory` says what is held.
"""

from dataclasses import dataclass

import numpy as np

from simulator.engine.flows import Flows
from simulator.engine.order_arrays import F, Ints, OrderArrays


@dataclass(frozen=True, slots=True, eq=False)
class Holds:
    """From when to when actions hold what; every array has one entry a hold.

    A moment is twice the index of an action, plus 1 for its end.

    Attributes
    ----------
    forward : array of int64
        The F whose activation it is a part of.
    take, free : arrays of int64
        Moments.
    part : array of int64
        0 the whole activation, 1 what only I needs, 2 what stays until W.
    """

    forward: Ints
    take: Ints
    free: Ints
    part: Ints


def activation_holds(arrays: OrderArrays, flow: Flows) -> Holds:
    """Return the holds of activations."""
    forward = np.flatnonzero(arrays.code == F)
    backward = flow.backward_of[forward]
    has = backward >= 0
    weight = np.where(has, flow.weight_of[backward], -1)
    again = np.maximum(np.where(has, flow.recompute_of[backward], -1), flow.reload_of[forward])
    take = 2 * np.where(again >= 0, again, forward)
    split = weight >= 0
    free = 2 * np.where(has, backward, forward) + 1
    away = flow.offload_of[forward] >= 0
    return Holds(
        np.concatenate([forward, forward[split], forward[away]]),
        np.concatenate([take, take[split], 2 * forward[away]]),
        np.concatenate([free, 2 * weight[split] + 1, 2 * flow.offload_of[forward[away]] + 1]),
        np.concatenate([split.astype(np.int64), np.full(split.sum(), 2), np.zeros(away.sum(), np.int64)]),
    )


def inputs_kept(arrays: OrderArrays, flow: Flows) -> tuple[Ints, Ints, Ints]:
    """Return each F that keeps an input for its R which was made on the same rank: the edge, the F and the R."""
    again, forwards = flow.recompute_of[flow.backward_of], np.flatnonzero((arrays.code == F) & (flow.backward_of >= 0))
    forwards = forwards[again[forwards] >= 0]
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for number, edge in enumerate(arrays.graph.edges if len(forwards) else ()):
        homes = arrays.graph.ranks[edge.source]
        kept = forwards[arrays.stage[forwards] == edge.target]
        groups = arrays.microbatch[kept] // arrays.graph.multiples[edge.source]
        kept = kept[np.array(homes)[groups % len(homes)] == arrays.rank[kept]]
        found.append((np.full(len(kept), number), kept))
    edges, kept = map(np.concatenate, zip(*found, strict=True))
    return edges, kept, again[kept]
