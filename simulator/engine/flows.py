"""What flows between the actions of a schedule, as arrays: `dependencies` for the engine.

Models outputs along the edges of the stage graph and gradients back over those that carry one, wherever
the micro-batch ranges (and sequence slices) of two actions overlap; and what an action needs of its own
stage. What a rank's order implies is left out. Leaves out times and streams.
"""

from dataclasses import dataclass

import numpy as np

from costmodel.errors import InvalidInput
from simulator.dependencies import carries_gradient
from simulator.engine.order_arrays import OFFLOAD, RELOAD, B, Bools, F, I, Ints, OrderArrays, R, W, unit_table


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """What goes from rank to rank; every array has one entry a message, in order of its producer.

    Attributes
    ----------
    source, target : arrays of int64
        Actions that produce and consume it.
    edge : array of int64
        Index of the stage edge it goes along.
    backward : array of bool
        Whether it is a gradient.
    microbatch : array of int64
        First micro-batch that it carries, the first that producer and consumer share; its name.
    piece : array of int64
        Sequence slice that it carries, -1 for the whole sequence.
    num_carried : array of int64
        How many micro-batches they share.
    """

    source: Ints
    target: Ints
    edge: Ints
    backward: Bools
    microbatch: Ints
    piece: Ints
    num_carried: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """All that actions wait for, besides the order of their rank.

    Attributes
    ----------
    messages : Messages
    local : (array, array)
        Pairs (needed, needing) of actions with no transfer between that no order implies. On one rank that
        is a need that comes after what needs it: the order waits on itself.
    backward_of : array of int64
        For each F, the I or B of the same micro-batches; -1 where there is none.
    weight_of, recompute_of : arrays of int64
        For each I and each backward: its W, its R; -1 where there is none.
    offload_of, reload_of : arrays of int64
        For each F: the OFFLOAD of its activation, and the RELOAD that brings it back; -1 where there is none.
    """

    messages: Messages
    local: tuple[Ints, Ints]
    backward_of: Ints
    weight_of: Ints
    recompute_of: Ints
    offload_of: Ints
    reload_of: Ints


def flows(arrays: OrderArrays) -> Flows:
    """Find what flows between the actions.

    Raises
    ------
    InvalidInput
        When an action occurs twice, or what another needs is missing.
    """
    forwards, backwards = unit_table(arrays, (F,)), unit_table(arrays, (I, B))
    weights, recomputes = unit_table(arrays, (W,)), unit_table(arrays, (R,))
    pairs = [_pairs(arrays, forwards, backwards), _pairs(arrays, backwards, weights)]
    pairs += [_pairs(arrays, forwards, recomputes), _present(recomputes, backwards)]
    if arrays.schedule.num_slices > 1:
        pairs += _slice_chains(arrays, forwards, backwards)
    messages, stages = _between_stages(arrays, forwards, backwards)
    pairs.append(stages)
    offloads, reloads = _copies(arrays, forwards, backwards, recomputes)
    return Flows(
        messages,
        _not_implied(arrays, pairs),
        _partner(arrays, forwards, backwards),
        _partner(arrays, backwards, weights),
        _partner(arrays, backwards, recomputes),
        _partner(arrays, forwards, offloads),
        _partner(arrays, forwards, reloads),
    )


def _copies(arrays: OrderArrays, forwards: Ints, backwards: Ints, recomputes: Ints) -> tuple[Ints, Ints]:
    """Return the units of OFFLOAD and RELOAD, which go together, between a forward and its backward."""
    if not ((arrays.code == OFFLOAD) | (arrays.code == RELOAD)).any():
        none = np.full_like(forwards, -1)
        return none, none
    offloads, reloads = unit_table(arrays, (OFFLOAD,)), unit_table(arrays, (RELOAD,))
    there = (offloads >= 0) | (reloads >= 0)
    for others, why in (
        ((offloads, reloads), "has only one of OFFLOAD and RELOAD; what leaves comes back"),
        ((forwards, backwards), "needs a forward before OFFLOAD and a backward behind RELOAD; add the missing action"),
    ):
        alone = there & (np.minimum(*others) < 0)
        if alone.any():
            action = arrays.actions[np.maximum(offloads, reloads)[alone][0]]
            raise InvalidInput(f"{action} is where its stage {why}")
    if (there & (recomputes >= 0)).any():
        action = arrays.actions[offloads[there & (recomputes >= 0)][0]]
        raise InvalidInput(f"{action} copies an activation that R makes again; leave one of the two out")
    return offloads, reloads


def _pairs(arrays: OrderArrays, needed: Ints, needing: Ints) -> tuple[Ints, Ints]:
    """Pair two tables of one shape, unit by unit, where something needs."""
    source, target = needed.ravel(), needing.ravel()
    kept = target >= 0
    if (source[kept] < 0).any():
        action = arrays.actions[target[np.flatnonzero(kept & (source < 0))[0]]]
        raise InvalidInput(f"{action} needs a result that no action of the orders makes; add the missing action")
    return source[kept], target[kept]


def _present(needed: Ints, needing: Ints) -> tuple[Ints, Ints]:
    both = (needed >= 0) & (needing >= 0)
    return needed[both], needing[both]


def _slice_chains(arrays: OrderArrays, forwards: Ints, backwards: Ints) -> list[tuple[Ints, Ints]]:
    """Each forward slice needs the one before it, each backward slice the one after it."""
    shape = (len(forwards), -1, arrays.schedule.num_slices)
    rising, falling = forwards.reshape(shape), backwards.reshape(shape)
    chains = [_present(rising[..., :-1], rising[..., 1:]), _present(falling[..., 1:], falling[..., :-1])]
    return [(source[source != target], target[source != target]) for source, target in chains]


def _between_stages(arrays: OrderArrays, forwards: Ints, backwards: Ints) -> tuple[Messages, tuple[Ints, Ints]]:
    """Return messages between ranks, and the pairs of actions of different stages on one rank."""
    graph = arrays.graph
    ends = np.array([(e.source, e.target) for e in graph.edges], np.int64).reshape(-1, 2)
    back = np.flatnonzero([carries_gradient(graph, e) for e in graph.edges])
    out, into = _pairs(arrays, forwards[ends[:, 0]], forwards[ends[:, 1]])
    from_target, to_source = _pairs(arrays, backwards[ends[back, 1]], backwards[ends[back, 0]])
    num_units = forwards.shape[1]
    edge = np.concatenate([
        np.repeat(np.arange(len(ends)), num_units)[(forwards[ends[:, 1]] >= 0).ravel()],
        np.repeat(back, num_units)[(backwards[ends[back, 0]] >= 0).ravel()],
    ])  # fmt: skip
    source, target = np.concatenate([out, from_target]), np.concatenate([into, to_source])
    backward = np.arange(len(source)) >= len(out)
    apart = arrays.rank[source] != arrays.rank[target]
    together = (source[~apart], target[~apart])
    source, target, edge, backward = source[apart], target[apart], edge[apart], backward[apart]
    order, carried = _once(arrays, source, target)
    source, target = source[order], target[order]
    microbatch = np.maximum(arrays.microbatch[source], arrays.microbatch[target])
    piece = np.maximum(arrays.slice_index[source], arrays.slice_index[target])
    return Messages(source, target, edge[order], backward[order], microbatch, piece, carried), together


def _once(arrays: OrderArrays, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Return the first of each equal pair, in order of source, target stage and name, and what it carries."""
    graph, schedule = arrays.graph, arrays.schedule
    name = np.maximum(arrays.microbatch[source], arrays.microbatch[target])
    piece = np.maximum(arrays.slice_index[source], arrays.slice_index[target]) + 1
    key = (source * graph.num_stages + arrays.stage[target]) * schedule.num_microbatches + name
    key = key * (schedule.num_slices + 1) + piece
    if max(graph.multiples) == 1 and schedule.num_slices == 1:
        order = np.argsort(key)
        return order, np.ones(len(source), np.int64)
    _, first = np.unique(key, return_index=True)
    multiples = np.array(graph.multiples)
    stops = [arrays.microbatch[end] + multiples[arrays.stage[end]] for end in (source[first], target[first])]
    return first, np.minimum(*stops) - name[first]


def _not_implied(arrays: OrderArrays, pairs: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    source, target = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
    kept = (source >= target) | (arrays.rank[source] != arrays.rank[target])
    return source[kept], target[kept]


def _partner(arrays: OrderArrays, of: Ints, partner: Ints) -> Ints:
    found = np.full(len(arrays.actions), -1, np.int64)
    both = (of >= 0) & (partner >= 0)
    found[of[both]] = partner[both]
    return found
