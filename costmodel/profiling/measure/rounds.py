"""One round of measuring a micro-batch size: a whole step, in some rounds one in split form, a step in context.

One after the other, so that all see the machine at the same pace. The split form is run as on the first of
two ranks under ZB-H1: two forwards, then I and W of each, so that a forward and an I run while another
micro-batch is held. More in flight is rarer and would need the memory of as many whole models. Leaves out
medians (`assemble`) and the stages' messages.
"""

from dataclasses import replace
from typing import Any

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture
from costmodel.capture.clock import Clock
from costmodel.capture.parts import Part, extract
from costmodel.capture.split import split_part
from costmodel.capture.split_calls import Queue
from costmodel.model.graph import LOSS
from costmodel.profiling.measure.timing import MarkCost, in_order, time_in_context, time_whole
from costmodel.profiling.measure.walk import Walk

IN_FLIGHT = 2
SPLIT_EVERY = 2
"""Rounds for one with the split form, whose two micro-batches take as long as the rest of a round."""


class Rounds:
    """A captured model at one micro-batch size, ready to be measured."""

    def __init__(self, captured: Capture, piece: TrainingModel, clock: Clock, marks: MarkCost) -> None:
        self.captured, self.piece, self.clock, self.marks = captured, piece, clock, marks
        self.whole, self.walk = extract(captured, captured.operators), Walk(captured)
        self.queue = Queue()
        split = split_part(self.whole, self.queue)
        anything = len(split.module.graph.find_nodes(op="call_module")) > 0
        self.split = split if anything and not captured.program.plan_only else None

    def measure(self, index: int) -> list[Any]:
        """Measure one round; what a journal keeps of it."""
        whole = time_whole(self.whole, self.piece, self.clock)
        split = self._split_ns() if index % SPLIT_EVERY == 0 else (0, 0)
        context = time_in_context(self.walk, self.piece, self.clock)
        found = in_order(self.captured, whole, context, self.marks)
        return replace(found, split_forward_ns=split[0], split_backward_ns=split[1]).to_list()

    def _split_ns(self) -> tuple[int, int]:
        """Return F, and I with W, in split form; 0 where nothing is split, or it cannot be run."""
        if self.split is None:
            return 0, 0
        try:
            return time_split(self.split, self.queue, self.piece, self.clock)
        except RuntimeError:  # two in flight may not fit the memory: no reason to lose the whole profile
            self.queue.drain()
            self.split = None
            return 0, 0


def time_split(split: Part, queue: Queue, piece: TrainingModel, clock: Clock) -> tuple[int, int]:
    """Time F, and I with W, of a micro-batch in split form, in ns; gradients are added up."""
    values = split.capture.bind(piece)
    clock.wait()
    start = clock.mark()
    losses = [split(values, piece.targets)[LOSS] for _ in range(IN_FLIGHT)]
    middle = clock.mark()
    while losses:
        losses.pop(0).backward()  # type: ignore[no-untyped-call]
        for half in queue.drain():
            half.run()
    end = clock.mark()
    clock.wait()
    return clock.span_ns(start, middle) // IN_FLIGHT, clock.span_ns(middle, end) // IN_FLIGHT
