"""What an action waits for besides its rank's order, and what it sends to whom.

Models data only: outputs along the edges of the stage graph, gradients back along the edges that carry
one. Micro-batch groups of two stages meet where their ranges overlap, so stages may work on different
numbers of micro-batches at a time. Leaves out times, links and memory.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from simulator.actions import COMPUTE, Action, Kind
from simulator.schedule import Schedule, StageEdge, StageGraph


def carries_gradient(graph: StageGraph, edge: StageEdge) -> bool:
    """Whether a gradient flows back over an edge: it is marked so and both of its ends have backwards."""
    return edge.gradient and graph.backward[edge.source] and graph.backward[edge.target]


def overlapping(graph: StageGraph, stage: int, first: int, stop: int) -> range:
    """First micro-batch of each action of `stage` that shares a micro-batch with [first, stop)."""
    multiple = graph.multiples[stage]
    return range(first - first % multiple, stop, multiple)


def needs(schedule: Schedule) -> dict[Action, tuple[Action, ...]]:
    """Return for each compute action of a schedule the compute actions whose results it needs.

    F needs F of every predecessor whose range overlaps its own; R its F; B and I their own F (and R where
    there is one) and B or I of every successor that sends a gradient; W its I. With sequence slices, F
    also needs the slice before, a backward the slice after; a stage that takes sequences whole needs, and is
    needed by, all slices of a stage that does not. Actions that the schedule lacks are left out.
    """
    actions = [action for order in schedule.orders for action in order if action.kind in COMPUTE]
    present = set(actions)
    return {action: tuple(n for n in _needed(schedule.graph, action, present) if n in present) for action in actions}


def required(graph: StageGraph, action: Action, present: set[Action]) -> tuple[Action, ...]:
    """Return what a compute action needs, whether it is there or not (a missing B or I is named as B)."""
    return tuple(_needed(graph, action, present))


def _needed(graph: StageGraph, action: Action, present: set[Action]) -> Iterator[Action]:
    stage, first, piece = action.stage, action.microbatch, action.slice_index
    stop = first + graph.multiples[stage]
    if action.kind is Kind.F:
        for source in graph.predecessors[stage]:
            for k in overlapping(graph, source, first, stop):
                yield from _alike(Action(Kind.F, source, k, piece), present)
        if piece > 0:
            yield Action(Kind.F, stage, first, piece - 1)
    elif action.kind is Kind.W:
        yield Action(Kind.I, stage, first, piece)
    else:
        yield Action(Kind.F, stage, first, piece)
        if action.kind is not Kind.R:
            yield from _needed_by_backward(graph, action, present)


def _needed_by_backward(graph: StageGraph, action: Action, present: set[Action]) -> Iterator[Action]:
    stage, first, piece = action.stage, action.microbatch, action.slice_index
    stop = first + graph.multiples[stage]
    again = Action(Kind.R, stage, first, piece)
    if again in present:
        yield again
    for target in graph.gradient_successors[stage]:
        if graph.backward[target]:
            for k in overlapping(graph, target, first, stop):
                for forward in _alike(Action(Kind.F, target, k, piece), present):
                    yield _backward(forward, present)
    if piece >= 0:
        later = _backward(Action(Kind.F, stage, first, piece + 1), present)
        if later in present:
            yield later


def _backward(forward: Action, present: Container[Action]) -> Action:
    split = replace(forward, kind=Kind.I)
    return split if split in present else replace(forward, kind=Kind.B)


def _alike(action: Action, present: Container[Action]) -> Iterator[Action]:
    """Yield the action, or what represents it where its stage takes sequences whole, or in slices."""
    if action not in present:
        if action.slice_index >= 0 and (whole := replace(action, slice_index=-1)) in present:
            yield whole
            return
        if action.slice_index < 0 and (slices := _slices(action, present)):
            yield from slices
            return
    yield action


def _slices(action: Action, present: Container[Action]) -> list[Action]:
    found: list[Action] = []
    while (piece := replace(action, slice_index=len(found))) in present:
        found.append(piece)
    return found


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message between two ranks.

    The unit of transfer is the range of micro-batches that one action of the producer and one of the
    consumer share (of two stages whose multiples divide each other: the smaller multiple), and of it one
    slice if either of them works in slices. Its name is the first micro-batch of that range, so producer and
    consumer name it alike.
    """

    send: Action
    receive: Action
    sender: int
    receiver: int


def transfers(graph: StageGraph, action: Action, present: Container[Action] = ()) -> Iterator[Transfer]:
    """Yield what an action sends, by target stage and micro-batch; nothing goes between stages of one rank.

    F sends outputs along the edges of its stage; B and I send gradients back. `present` holds all actions of
    the schedule; it is needed where only some stages work in slices.
    """
    if action.kind is Kind.F:
        for target in graph.successors[action.stage]:
            yield from _between(graph, action, target, present)
    elif action.kind in (Kind.B, Kind.I):
        for source in graph.predecessors[action.stage]:
            if graph.backward[source] and action.stage in graph.gradient_successors[source]:
                yield from _between(graph, action, source, present)


def _between(graph: StageGraph, action: Action, peer: int, present: Container[Action]) -> Iterator[Transfer]:
    stage, first, piece = action.stage, action.microbatch, action.slice_index
    send, receive = (Kind.SEND_F, Kind.RECV_F) if action.kind is Kind.F else (Kind.SEND_B, Kind.RECV_B)
    sender = graph.rank_of(stage, first)
    for group in overlapping(graph, peer, first, first + graph.multiples[stage]):
        receiver = graph.rank_of(peer, group)
        if receiver == sender:
            continue
        k = max(first, group)
        slices = _slices(Action(Kind.F, peer, group), present) if piece < 0 else ()
        for part in [other.slice_index for other in slices] or [piece]:
            yield Transfer(Action(send, stage, k, part, peer), Action(receive, peer, k, part, stage), sender, receiver)
