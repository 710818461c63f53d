"""One stage on one rank: forward and backward of its part for one micro-batch group at a time.

Received tensors become leaves of the stage's own autograd graph; a tensor that is passed on (relayed) is
such a leaf too, so its downstream gradient adds to the local one by itself. Outputs are kept only as the
edges at which the backward starts, so that memory follows the plan. Buffers that a forward both reads and writes it
works on as copies of its own, since others of the same buffers come before its backward; a forward that runs again
starts from those of its first run, and leaves all (BatchNorm's averages, too) as that did. Leaves out messages and
order.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from costmodel.capture.parts import LOSS_WEIGHT, Part
from costmodel.capture.split_calls import Queue, WeightHalf, run_in_turn
from costmodel.capture.writes import Written
from costmodel.errors import DoesNotMatch
from costmodel.model.graph import LOSS
from executor.communication.wiring import Wire, join
from executor.model.users_loss import loss_left_alone
from executor.stages.randomness import Draws

Gradients = dict[str, torch.Tensor]
_NOTHING = nullcontext()


@dataclass(slots=True)
class Running:
    """What a stage keeps of one micro-batch group from its forward until its backward."""

    leaves: dict[str, torch.Tensor]
    recorded: bool = True
    roots: dict[str, GradientEdge] = field(default_factory=dict)
    loss: torch.Tensor | None = None
    loss_gradient: torch.Tensor | None = None
    started_from: list[torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A buffer that the part reads and writes, and where it finds it: tables of modules, and its name in each."""

    buffer: torch.Tensor
    places: tuple[tuple[dict[str, Any], str], ...]

    def put(self, tensor: torch.Tensor) -> None:
        """Let the part find a tensor there."""
        for table, name in self.places:
            table[name] = tensor


@dataclass(slots=True)
class Stage:
    """A stage's part with what it is at.

    Attributes
    ----------
    index : int
    part : Part
    incoming, outgoing : tuple of Wire
    multiple : int
        Micro-batches in one action.
    num_microbatches : int
        Of the step: scalar losses are averaged over them.
    trains : bool
        Whether it has backwards.
    inputs : callable
        First micro-batch -> (raw inputs by name, targets).
    recomputes : bool
        Whether a forward keeps nothing but what was received, and runs again before its backward.
    queue : Queue or None
        Where a split part leaves its weight halves.
    buffers : tuple of torch.Tensor
        Those that the part reads, and perhaps updates.
    slots : tuple of Slot
        Buffers that it both reads and writes.
    written : tuple of Written
        All that it writes.
    evaluates : bool
        Whether what forwards write is forgotten.
    draws : Draws or None
        Seeds of its random numbers, where it draws any.
    run_halves : callable
        Runs the weight halves of one backward.
    silent : frozenset of str
        Sent tensors that no gradient of the loss reaches: no backward runs for them.
    arrived : set of str
        Received tensors for which there was a gradient.
    num_backwards : int
        In a step.
    num_real : int or None
        Micro-batches that the batch fills, where it is a short one; those behind them stand in and count nothing.
    counts : bool
        Whether the last forward's micro-batch is one that counts.
    losses : list of (loss, weight or None)
        Of this step's forwards; a scalar loss stands for `multiple` micro-batches.
    """

    index: int
    part: Part
    incoming: tuple[Wire, ...]
    outgoing: tuple[Wire, ...]
    multiple: int
    num_microbatches: int
    trains: bool
    inputs: Callable[[int], tuple[Mapping[str, Any], Any]]
    recomputes: bool = False
    queue: Queue | None = None
    buffers: tuple[torch.Tensor, ...] = ()
    slots: tuple[Slot, ...] = ()
    written: tuple[Written, ...] = ()
    evaluates: bool = False
    draws: Draws | None = None
    losses: list[tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=list)
    running: dict[int, Running] = field(default_factory=dict)
    weight_halves: dict[int, deque[WeightHalf]] = field(default_factory=dict)
    run_halves: Callable[[deque[WeightHalf]], None] = run_in_turn
    silent: frozenset[str] = frozenset()
    num_backwards: int = 0
    arrived: set[str] = field(default_factory=set)
    _expected: set[str] | None = None
    _backwards_left: int = 0
    num_real: int | None = None
    counts: bool = True

    @property
    def share(self) -> float:
        """What a scalar loss of one action counts in the step's."""
        return self.multiple / (self.num_real or self.num_microbatches)

    def begin(self, num_real: int | None) -> None:
        """Start a step, in which so many micro-batches are filled, None for all."""
        self.losses.clear()
        self.num_real = num_real

    def forward(self, first: int, received: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Run the part for the group that starts at micro-batch `first`.

        `received` holds the tensors of each incoming wire; returned are those of each outgoing one.
        """
        running = Running(self._leaves(received), recorded=self.trains and not self.recomputes)
        self.counts = self.num_real is None or first < self.num_real
        kept = [] if self.counts else [buffer.clone() for buffer in self.buffers]
        result = self._run(first, running)
        for buffer, value in zip(self.buffers if kept else (), kept, strict=True):
            buffer.data.copy_(value)
        if self.part.has_loss and self.counts:
            loss, weight = result[LOSS], result.get(LOSS_WEIGHT)
            self.losses.append((loss.detach(), None if weight is None else weight.detach()))
        if self.trains:
            self.running[first] = running
        return [
            [(result[name] if name in result else running.leaves[name]).detach() for name in wire.names]
            for wire in self.outgoing
        ]

    def recompute(self, first: int) -> None:
        """Run a group's forward again, now for its backward, with the random numbers of the first time."""
        running = self.running[first]
        if running.recorded:
            return
        running.recorded = True
        kept = [buffer.clone() for buffer in self.buffers]
        self._run(first, running)
        for buffer, value in zip(self.buffers, kept, strict=True):
            buffer.data.copy_(value)  # past autograd, which has saved what it needs

    def backward(self, first: int, received: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Run the whole backward of a group; parameters accumulate in ``.grad``.

        `received` holds the gradients of each outgoing wire; returned are those of each incoming one.
        """
        gradients = self.input_backward(first, received)
        if self.queue is not None:
            self.weight_backward(first)
        return gradients

    def input_backward(self, first: int, received: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Run the backward of a group; a split part leaves its weight halves for `weight_backward`."""
        self.recompute(first)
        running = self.running.pop(first)
        edges: list[Any] = []
        gradients: list[torch.Tensor | None] = []
        for name, gradient in self._summed(received).items():
            if name in running.roots and name not in self.silent:
                edges.append(running.roots[name])
                gradients.append(gradient)
        if running.loss is not None and running.loss.requires_grad:
            edges.append(running.loss)
            gradients.append(running.loss_gradient)
        drawing = _NOTHING if self.draws is None else self.draws.of_microbatch(first)  # by what runs again
        with drawing:
            if edges:
                torch.autograd.backward(edges, gradients)
        if self.queue is not None:
            self.weight_halves[first] = self.queue.drain()
        if self.part.has_loss:
            self._note_arrivals(running)
        return [
            [_gradient_of(running.leaves[wire.names[position]]) for position in wire.gradients]
            for wire in self.incoming
        ]

    def weight_backward(self, first: int) -> None:
        """Run the weight halves that a group's `input_backward` has left."""
        self.run_halves(self.weight_halves.pop(first))

    def rehearse(self, first: int, device: torch.device) -> None:
        """Run forward and backward of a group on zeros and leave nothing behind.

        A device loads a kernel when it first runs it, and stands still for it: beside a message that waits for its
        other end that would be for ever.
        """
        kept = [buffer.clone() for buffer in self.buffers]
        with loss_left_alone(self.part):
            self.forward(first, [self._zeros(wire, range(len(wire.names)), first, device) for wire in self.incoming])
            if self.trains:
                self.backward(first, [self._zeros(wire, wire.gradients, first, device) for wire in self.outgoing])
        for buffer, value in zip(self.buffers, kept, strict=True):
            buffer.data.copy_(value)
        self.losses.clear()

    def _zeros(self, wire: Wire, positions: Sequence[int], first: int, device: torch.device) -> list[torch.Tensor]:
        templates = [wire.of_unit(unit) for unit in wire.units_in(first, self.multiple)]
        pieces = [[torch.zeros(row[i][0], dtype=row[i][1], device=device) for i in positions] for row in templates]
        return join(wire, positions, pieces, gradients=False) if pieces else []

    def _run(self, first: int, running: Running) -> dict[str, torch.Tensor]:
        """Compute the part; while recorded, note where its backward starts."""
        raw, targets = self.inputs(first)
        drawing = nullcontext() if self.draws is None else self.draws.of_microbatch(first)
        with torch.set_grad_enabled(running.recorded), drawing, self._own_buffers(running) if self.slots else _NOTHING:
            result = self.part({**running.leaves, **raw}, targets)
        if not running.recorded:
            return result
        if self.part.has_loss:
            self._note_loss(first, running, result)
        for wire in self.outgoing:
            for position in wire.gradients:
                name = wire.names[position]
                tensor = result[name] if name in result else running.leaves[name]
                if name not in running.roots and tensor.requires_grad:
                    running.roots[name] = get_gradient_edge(tensor)
        return result

    @contextmanager
    def _own_buffers(self, running: Running) -> Iterator[None]:
        """Have the part work on copies within the block, which the first run leaves in the buffers."""
        again = running.started_from
        if again is None and self.recomputes:
            running.started_from = [slot.buffer.clone() for slot in self.slots]
        copies = again or [slot.buffer.clone() for slot in self.slots]
        for slot, copy in zip(self.slots, copies, strict=True):
            slot.put(copy)
        try:
            yield
        finally:
            for slot, copy in zip(self.slots, copies, strict=True):
                slot.put(slot.buffer)
                if again is None and not self.evaluates:
                    slot.buffer.data.copy_(copy)

    def _leaves(self, received: Sequence[Sequence[torch.Tensor]]) -> dict[str, torch.Tensor]:
        leaves: dict[str, torch.Tensor] = {}
        for wire, tensors in zip(self.incoming, received, strict=True):
            for position, (name, tensor) in enumerate(zip(wire.names, tensors, strict=True)):
                if name not in leaves:
                    leaves[name] = tensor.detach().requires_grad_(self.trains and position in wire.gradients)
        return leaves

    def _note_loss(self, first: int, running: Running, result: Mapping[str, torch.Tensor]) -> None:
        loss, weight = result[LOSS], result.get(LOSS_WEIGHT)
        running.loss = loss
        # The total weight is known only at the end of the step, so a weighted sum is divided by it then.
        share = self.share if weight is None else 1.0
        running.loss_gradient = torch.full_like(loss, share if self.num_real is None or first < self.num_real else 0.0)

    def expect(self, arrivals: set[str] | None) -> None:
        """Start a step in which gradients arrive for these received tensors; None for any."""
        self.arrived = set()
        self._expected, self._backwards_left = arrivals, self.num_backwards

    def _note_arrivals(self, running: Running) -> None:
        """Note which received tensors have a gradient: what a loss leaves out has none, and not zeros."""
        self.arrived.update(name for name, leaf in running.leaves.items() if leaf.grad is not None)
        self._backwards_left -= 1
        if not self._backwards_left and self._expected is not None and self.arrived != self._expected:
            raise DoesNotMatch(
                f"the loss has gradients for {sorted(self.arrived)} in this step, and had them for "
                f"{sorted(self._expected)} in the first: what a loss leaves out has no gradient in one process, and an "
                "optimizer leaves it alone: let the loss use the same outputs in each step (times 0 where one is to "
                "count nothing)"
            )

    def _summed(self, received: Sequence[Sequence[torch.Tensor]]) -> Gradients:
        """Sum the gradients of each sent tensor over its consumers, in order of stage."""
        total: Gradients = {}
        for wire, tensors in zip(self.outgoing, received, strict=True):
            for position, tensor in zip(wire.gradients, tensors, strict=True):
                name = wire.names[position]
                total[name] = total[name] + tensor if name in total else tensor
        return total


def _gradient_of(leaf: torch.Tensor) -> torch.Tensor:
    """Return the gradient that arrived at a leaf; zeros when the stage made no use of it."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
