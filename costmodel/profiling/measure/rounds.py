"""One round of measuring a micro-batch size: a whole step, in some rounds one in split form, a step in context.

One after the other, so that all see the machine at the same pace. On a device that works behind its host the step
in context is run twice: for the host's time to issue it, and for the kernels that the device writes down. The split
form is run as on the first of two ranks under ZB-H1: two forwards, then I and W of each, so that a forward and an I
run while another micro-batch is held. More in flight is rarer and would need the memory of as many whole models.
Leaves out medians (`assemble`) and the stages' messages.
"""

from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture
from costmodel.capture.clock import Clock, DeviceClock
from costmodel.capture.heap import drop_unreachable
from costmodel.capture.parts import Part, extract
from costmodel.capture.split import split_part
from costmodel.capture.split_calls import Queue, run_in_turn
from costmodel.model.graph import LOSS
from costmodel.profiling.measure.assemble import Launched, Round
from costmodel.profiling.measure.marks import HostMarks, KernelMarks
from costmodel.profiling.measure.records import KERNELS
from costmodel.profiling.measure.timing import MarkCost, in_order, observe, time_in_context, time_whole
from costmodel.profiling.measure.walk import Walk

IN_FLIGHT = 2
SETTLED = 0.01
"""Steps hold their pace when the median of one second's steps is within this share of the second's before."""
SETTLE_S = 20.0
"""Seconds after which a device that never holds its pace is measured as it is."""
SPLIT_EVERY = 2
"""Rounds for one with the split form, whose two micro-batches take as long as the rest of a round."""


class Rounds:
    """A captured model at one micro-batch size, ready to be measured."""

    def __init__(self, captured: Capture, piece: TrainingModel, clock: Clock, marks: MarkCost) -> None:
        self.captured, self.piece, self.clock, self.marks = captured, piece, clock, marks
        self.device = next((p.device for p in captured.model.module.parameters()), torch.device("cpu"))
        self.whole, self.walk = extract(captured, captured.operators), Walk(captured)
        self.queue = Queue()
        split = split_part(self.whole, self.queue)
        anything = len(split.module.graph.find_nodes(op="call_module")) > 0
        self.split = split if anything and not captured.program.plan_only else None

    def measure(self, index: int) -> list[Any]:
        """Measure one round; what a journal keeps of it."""
        split = self._split_ns() if index % SPLIT_EVERY == 0 else (0, 0)
        found = measure_round(self.whole, self.walk, self.piece, self.clock, self.marks)
        return replace(found, split_forward_ns=split[0], split_backward_ns=split[1]).to_list()

    def plain_kernel_ns(self) -> int:
        """Measure the time in kernels of a step without notes; 0 on a CPU."""
        if not isinstance(self.clock, DeviceClock):
            return 0
        with self.clock.records() as records:
            time_whole(self.whole, self.piece, self.clock)
        durations: list[float] = [1000 * event["dur"] for event in records if event.get("cat") in KERNELS]
        return round(sum(durations))

    def _split_ns(self) -> tuple[int, int]:
        """Return F, and I with W, in split form; 0 where nothing is split, or it cannot be run."""
        if self.split is None:
            return 0, 0
        try:
            return time_split(self.split, self.queue, self.piece, self.clock)
        except RuntimeError:  # two in flight may not fit the memory: no reason to lose the whole profile
            self.queue.drain()
            self.split = None
        drop_unreachable(self.device)
        return 0, 0


def measure_round(whole: Part, walk: Walk, piece: TrainingModel, clock: Clock, marks: MarkCost) -> Round:
    """Measure a whole step and the same in context; gradients are added up."""
    step = time_whole(whole, piece, clock)
    ordered = partial(in_order, walk.capture)
    if not isinstance(clock, DeviceClock):
        context = ordered(time_in_context(walk, piece, clock), marks)
        return Round(step.forward_ns, step.backward_ns, step.wall_ns, context)
    host = ordered(time_in_context(walk, piece, HostMarks(clock)), marks)
    device = KernelMarks(clock)
    with device.recorded():
        seen = observe(walk, piece, device)
    counts = ordered(seen.spans(device.num_kernels), MarkCost())
    return Round(
        step.forward_ns,
        step.backward_ns,
        step.wall_ns,
        ordered(seen.spans(device.span_ns), MarkCost()),
        launched=Launched(step.issue_forward_ns, step.issue_backward_ns, host, counts, device.sums.unattributed_ns),
    )


def settle(whole: Part, piece: TrainingModel, clock: Clock) -> None:
    """Run steps until a device keeps its pace: its clocks fall as it grows warm. A CPU needs none.

    Two medians are compared, a second of steps each: steps of a few milliseconds look alike before the clocks move.
    """
    if not isinstance(clock, DeviceClock):
        return
    start, before = clock.host_ns(), 0.0
    while clock.host_ns() - start < SETTLE_S * 1e9:
        second, steps = clock.host_ns(), []
        while clock.host_ns() - second < 1e9:
            steps.append(time_whole(whole, piece, clock))
        now = median(step.forward_ns + step.backward_ns for step in steps)
        if abs(now - before) <= SETTLED * now:
            return
        before = now


def time_split(split: Part, queue: Queue, piece: TrainingModel, clock: Clock) -> tuple[int, int]:
    """Time F, and I with W, of a micro-batch in split form, in ns; gradients are added up."""
    values = split.capture.bind(piece)
    clock.wait()
    start = clock.mark()
    losses = [split(values, piece.targets)[LOSS] for _ in range(IN_FLIGHT)]
    middle = clock.mark()
    while losses:
        losses.pop(0).backward()  # type: ignore[no-untyped-call]
        run_in_turn(queue.drain())
    end = clock.mark()
    clock.wait()
    return clock.span_ns(start, middle) // IN_FLIGHT, clock.span_ns(middle, end) // IN_FLIGHT
