"""The interpreter: a rank's lowered action list, one instruction after the other, and nothing else decides.

Each kind of action is one method of `Program`, found in one table. Messages wait in `Mailbox` by
(direction, producer stage, consumer stage, micro-batch); between stages of one rank they get there without
an action. Leaves out what the actions compute (`stage`) and how messages travel (`transport`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from costmodel.errors import DoesNotMatch
from executor.communication.transport import Pending, Transport
from executor.communication.wiring import Direction, Key, Wire, Wiring, cut, join
from executor.context import RankContext
from executor.observe.recording import Recorder
from executor.stages.stage import Stage
from simulator.actions import Action, Kind

Message = list[torch.Tensor]
Bound = tuple[Callable[[], Any] | None, Callable[[Any], None]]
"""How an action collects what it needs, and how it is then done."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One action, bound: `collect` waits for what it needs, `execute` does it."""

    action: Action
    stream: str
    collect: Callable[[], Any] | None
    execute: Callable[[Any], None]

    def run(self) -> None:
        """Do it, once what it needs is here."""
        self.execute(self.collect() if self.collect is not None else None)


class Mailbox:
    """Messages that have arrived, are on their way here, or wait to be sent."""

    def __init__(self, transport: Transport | None) -> None:
        self.transport = transport
        self.slots: dict[Key, Message | Pending] = {}
        self.recorder: Recorder | None = None

    def take(self, key: Key) -> Message:
        """Return a message, waiting for it where it is on its way."""
        try:
            found = self.slots.pop(key)
        except KeyError:
            raise DoesNotMatch(
                f"the plan reads the message {_spell(key)} before it is received; plan the model again"
            ) from None
        if isinstance(found, list):
            return found
        assert self.transport is not None
        if self.recorder is None:
            return self.transport.wait(found)
        start = self.recorder.mark()
        message = self.transport.wait(found)
        self.recorder.note(_receive_action(key), "receive", start, waits=True)
        return message


class Program:
    """What one rank does in a step.

    Parameters
    ----------
    context : RankContext
    wiring : Wiring
    stages : mapping of int to Stage
        Those of this rank.
    transport : Transport or None
        None on a single rank.
    reduce, optimize : callable
        What REDUCE and OPT of a stage do.
    """

    def __init__(
        self,
        context: RankContext,
        wiring: Wiring,
        stages: Mapping[int, Stage],
        transport: Transport | None,
        reduce: Callable[[int], None],
        optimize: Callable[[int], None],
    ) -> None:
        self.stages, self.transport, self.mailbox = stages, transport, Mailbox(transport)
        self._context, self._wiring, self._reduce, self._optimize = context, wiring, reduce, optimize

    def bind(self, order: Iterable[Action]) -> tuple[Instruction, ...]:
        """Return the instructions of an order of actions.

        Raises
        ------
        DoesNotMatch
            When the order holds a kind of action that the executor does not run, or another rank's stage.
        """
        bound, rank = [], self._context.rank
        for action in order:
            if action.kind not in _TABLE or action.slice_index >= 0:
                raise DoesNotMatch(
                    f"the action {action} of rank {rank} is none that the executor runs "
                    f"({', '.join(_TABLE)}, whole sequences); plan for the target executor"
                )
            if action.stage not in self.stages:
                raise DoesNotMatch(f"rank {rank} is to do {action}, but does not run stage {action.stage}")
            stream, method = _TABLE[action.kind]
            collect, execute = method(self, action)
            bound.append(Instruction(action, stream, collect, execute))
        return tuple(bound)

    def forward(self, action: Action) -> Bound:
        """F: outputs of the predecessors in, outputs for the successors out."""
        stage, first = self.stages[action.stage], action.microbatch
        ins = [self._end(wire, Direction.FORWARD, stage, first) for wire in stage.incoming]
        outs = [self._end(wire, Direction.FORWARD, stage, first) for wire in stage.outgoing]
        return partial(self._collect, ins), partial(self._compute, stage.forward, first, outs)

    def recompute(self, action: Action) -> Bound:
        """R: the forward again."""
        stage = self.stages[action.stage]
        return None, lambda _: stage.recompute(action.microbatch)

    def weight_backward(self, action: Action) -> Bound:
        """W: what the I of the same group has left."""
        stage = self.stages[action.stage]
        return None, lambda _: stage.weight_backward(action.microbatch)

    def backward(self, action: Action) -> Bound:
        """B or I: gradients of the outputs in, gradients of what was received out."""
        stage, first = self.stages[action.stage], action.microbatch
        work = stage.backward if action.kind is Kind.B else stage.input_backward
        ins = [self._end(wire, Direction.BACKWARD, stage, first) for wire in stage.outgoing]
        outs = [self._end(wire, Direction.BACKWARD, stage, first) for wire in stage.incoming]
        return partial(self._collect, ins), partial(self._compute, work, first, outs)

    def send(self, action: Action) -> Bound:
        """SEND: a message of the mailbox goes to the rank that will use it."""
        wire, key = self._addressed(action)
        peers = self._context.lanes.receivers(action.stage, action.peer, action.microbatch, self._context.rank)
        transport, slots, tag = self._transport(), self.mailbox.slots, self._tag(wire, key)

        def execute(_: Any) -> None:
            message = slots.pop(key, None)
            if not isinstance(message, list):
                raise DoesNotMatch(f"the plan sends {_spell(key)} before it is computed; plan the model again")
            if wire.own and [tensor.shape for tensor in message] != [shape for shape, _ in wire.expected(key)]:
                raise DoesNotMatch(
                    f"the message {_spell(key)} has the shapes {[list(tensor.shape) for tensor in message]}, and from "
                    f"the inputs follow {[list(shape) for shape, _ in wire.expected(key)]}: pad samples to one length"
                )
            for peer in peers:
                transport.send(peer, message, tag)

        return None, execute

    def receive(self, action: Action) -> Bound:
        """RECV: posted here, waited for by whoever needs it."""
        wire, key = self._addressed(action)
        peer = self._context.lanes.sender(action.peer, action.stage, action.microbatch, self._context.rank)
        transport, slots, tag = self._transport(), self.mailbox.slots, self._tag(wire, key)

        def execute(_: Any) -> None:
            slots[key] = transport.receive(peer, wire.expected(key), tag)

        return None, execute

    def reduce(self, action: Action) -> Bound:
        """REDUCE: the stage's gradients are complete on this rank."""
        return None, lambda _: self._reduce(action.stage)

    def optimize(self, action: Action) -> Bound:
        """OPT: one step of the optimizer on the stage's parameters."""
        return None, lambda _: self._optimize(action.stage)

    def _collect(self, ends: Sequence["_End"]) -> list[Message]:
        take = self.mailbox.take
        return [
            join(end.wire, end.positions, [take(key) for key in end.keys], gradients=end.gradients) if end.keys else []
            for end in ends
        ]

    def _compute(
        self,
        work: Callable[[int, Sequence[Message]], list[Message]],
        first: int,
        outs: Sequence["_End"],
        received: Sequence[Message],
    ) -> None:
        slots = self.mailbox.slots
        for end, tensors in zip(outs, work(first, received), strict=True):
            if end.keys:
                pieces = cut(end.wire, end.positions, tensors, end.units, gradients=end.gradients)
                slots.update(zip(end.keys, pieces, strict=True))

    def _end(self, wire: Wire, direction: Direction, stage: Stage, first: int) -> "_End":
        units = wire.units_in(first, stage.multiple)
        back = direction is Direction.BACKWARD
        positions = wire.gradients if back else tuple(range(len(wire.names)))
        keys = [(direction, wire.source, wire.target, unit) for unit in units if wire.flows_back or not back]
        return _End(wire, tuple(units), tuple(keys), positions, back)

    def _addressed(self, action: Action) -> tuple[Wire, Key]:
        """Return the edge and message that a SEND or RECV is about."""
        forward = action.kind in (Kind.SEND_F, Kind.RECV_F)
        downstream = action.kind in (Kind.SEND_F, Kind.RECV_B)
        ends = (action.stage, action.peer) if downstream else (action.peer, action.stage)
        wire = self._wiring.wires.get(ends)
        if wire is None or action.microbatch not in wire.units:
            raise DoesNotMatch(f"{action} belongs to no edge of the plan; plan the model again")
        return wire, (Direction.FORWARD if forward else Direction.BACKWARD, *ends, action.microbatch)

    def _tag(self, wire: Wire, key: Key) -> int:
        """Return the message's tag; no two messages of a step share one."""
        number = 2 * wire.index + (key[0] is Direction.BACKWARD)
        return number * self._context.plan.batch.num_microbatches + key[3]

    def _transport(self) -> Transport:
        if self.transport is None:
            raise DoesNotMatch("a plan of one rank sends a message; plan the model again")
        return self.transport


@dataclass(frozen=True, slots=True)
class _End:
    """What one compute action takes from, or puts into, the mailbox for one edge; no keys where nothing flows."""

    wire: Wire
    units: tuple[int, ...]
    keys: tuple[Key, ...]
    positions: tuple[int, ...]
    gradients: bool


_TABLE: Mapping[Kind, tuple[str, Callable[[Program, Action], Bound]]] = {
    Kind.F: ("compute", Program.forward),
    Kind.B: ("compute", Program.backward),
    Kind.I: ("compute", Program.backward),
    Kind.W: ("compute", Program.weight_backward),
    Kind.R: ("compute", Program.recompute),
    Kind.SEND_F: ("send", Program.send),
    Kind.SEND_B: ("send", Program.send),
    Kind.RECV_F: ("receive", Program.receive),
    Kind.RECV_B: ("receive", Program.receive),
    Kind.REDUCE: ("collective", Program.reduce),
    Kind.OPT: ("compute", Program.optimize),
}


def _spell(key: Key) -> str:
    return f"{key[1]} -> {key[2]} ({key[0]}, micro-batch {key[3]})"


def _receive_action(key: Key) -> Action:
    if key[0] is Direction.FORWARD:
        return Action(Kind.RECV_F, key[2], key[3], peer=key[1])
    return Action(Kind.RECV_B, key[1], key[3], peer=key[2])
