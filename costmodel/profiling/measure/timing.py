"""Spans in context: one real step, every operator's forward and backward told apart.

Forward is timed node by node; backward by a mark before each autograd node: what lies between two
marks belongs to the first, so that nothing of the backward is left out; what autograd's engine takes before
the first node and after the last belongs to all alike. What the marks themselves cost
is measured on a chain of empty operators and taken off. Leaves out the split of a backward into input
and weight gradient (`ratio`), and which spans a device needs (`rounds`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture, capture
from costmodel.capture.clock import Clock, DeviceClock, Mark
from costmodel.capture.parts import Part, extract
from costmodel.model.graph import LOSS
from costmodel.profiling.measure.assemble import InOrder
from costmodel.profiling.measure.marks import HostMarks
from costmodel.profiling.measure.walk import Walk

Span = Callable[[Mark, Mark], int]

ACCUMULATE = "accumulate"
"""Owner of the time in which gradients are added to those of inputs; with a parameter's name behind it, to its own."""

ENGINE = "engine"
"""Owner of the time in which autograd's engine makes ready and clears away, until it is divided."""


@dataclass(frozen=True, slots=True)
class ContextTimes:
    """One instrumented step: ns and number of marks by operator (and `accumulation_owner` in backward)."""

    forward_ns: Mapping[str, int]
    forward_marks: Mapping[str, int]
    backward_ns: Mapping[str, int]
    backward_marks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WholeTimes:
    """One step of the whole program without instruments, loss and gradient accumulation included.

    `wall_ns` is forward and backward by the wall clock, whatever clock the others are by; `issue_forward_ns` and
    `issue_backward_ns` are what the host took to issue them, by the wall clock too.
    """

    forward_ns: int
    backward_ns: int
    wall_ns: int
    issue_forward_ns: int
    issue_backward_ns: int


@dataclass(frozen=True, slots=True)
class MarkCost:
    """What one mark adds to the operator that it times, ns."""

    forward_ns: float = 0.0
    backward_ns: float = 0.0


def accumulation_owner(parameter: str) -> str:
    """Return the owner of the time in which a parameter's gradient is added to what is there."""
    return f"{ACCUMULATE} {parameter}"


def trained_parameters(captured: Capture, operators: Iterable[str]) -> tuple[str, ...]:
    """Return the parameters of operators that get a gradient, in the order of those that read them first."""
    groups = [captured.groups[operator] for operator in operators if operator != LOSS]
    names = dict.fromkeys(name for group in groups for name in group.parameters)
    return tuple(name for name in names if captured.parameter(name).requires_grad)


def in_order(captured: Capture, context: ContextTimes, marks: MarkCost) -> InOrder:
    """Put spans into order, each mark's own cost taken off."""

    def net(spans: Mapping[str, int], counts: Mapping[str, int], cost: float, name: str) -> int:
        return max(0, round(spans.get(name, 0) - counts.get(name, 0) * cost))

    def backward(name: str) -> int:
        return net(context.backward_ns, context.backward_marks, marks.backward_ns, name)

    trained = trained_parameters(captured, captured.operators)
    return InOrder(
        backward(ACCUMULATE),
        tuple(net(context.forward_ns, context.forward_marks, marks.forward_ns, name) for name in captured.operators),
        tuple(map(backward, captured.operators)),
        tuple(backward(accumulation_owner(name)) for name in trained),
    )


def time_whole(whole: Part, piece: TrainingModel, clock: Clock) -> WholeTimes:
    """Time one forward and backward of the part that holds all operators; gradients are added up."""
    values = whole.capture.bind(piece)
    clock.wait()
    issued = [clock.host_ns()]
    start = clock.mark()
    loss = whole(values, piece.targets)[LOSS]
    middle = clock.mark()
    issued.append(clock.host_ns())
    loss.backward()  # type: ignore[no-untyped-call]
    end = clock.mark()
    issued.append(clock.host_ns())
    clock.wait()
    wall = clock.host_ns() - issued[0]
    spans = clock.span_ns(start, middle), clock.span_ns(middle, end)
    return WholeTimes(*spans, wall, issued[1] - issued[0], issued[2] - issued[1])


def time_in_context(walk: Walk, piece: TrainingModel, clock: Clock) -> ContextTimes:
    """Time every operator in one real step on a micro-batch; gradients are added up."""
    return observe(walk, piece, clock).spans(clock.span_ns)


def observe(walk: Walk, piece: TrainingModel, clock: Clock) -> "Observed":
    """Run one step on a micro-batch with marks round every operator; gradients are added up."""
    seen = Observed(walk, clock)
    seen.run(piece)
    return seen


class Observed:
    """The marks of one step in context, whose spans may be read later."""

    def __init__(self, walk: Walk, clock: Clock) -> None:
        self.walk = walk
        self.clock = clock
        self.forward: list[tuple[str, Mark, Mark]] = []
        self.backward: list[tuple[str, Mark]] = []
        self.seen: set[Any] = set()
        self.handles: list[Any] = []
        named = walk.capture.model.module.named_parameters()
        self.accumulations = {id(parameter): accumulation_owner(name) for name, parameter in named}

    def run(self, piece: TrainingModel) -> None:
        """Run the step; its hooks go even when it fails, or they would hold all that it has saved."""
        clock = self.clock
        clock.wait()
        try:
            self._step(piece)
        finally:
            for handle in self.handles:
                handle.remove()
            self.seen.clear()

    def _step(self, piece: TrainingModel) -> None:
        model, clock = self.walk.capture.model, self.clock
        leaves = self.walk.run(self.walk.capture.bind(piece), self._call)
        start = clock.mark()
        loss, _ = model.evaluate(pytree.tree_unflatten(leaves, self.walk.capture.program.out_spec), piece.targets)
        self.forward.append((LOSS, start, clock.mark()))
        del leaves
        self._own(LOSS, loss)
        self.handles.append(loss.register_hook(self._close_with_engine))  # type: ignore[no-untyped-call]
        self.backward.append((ENGINE, clock.mark()))
        loss.backward()  # type: ignore[no-untyped-call]
        self.backward.append((ENGINE, clock.mark()))
        clock.wait()

    def _call(self, owner: str, node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        target: Any = node.target
        start = self.clock.mark()
        value = target(*args, **kwargs)
        end = self.clock.mark()
        self.forward.append((owner, start, end))
        self._own(owner, value)
        return value

    def _own(self, owner: str, value: Any) -> None:
        """Give the autograd nodes that made a value, and belong to nobody yet, to its operator."""
        pending = [leaf.grad_fn for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        while pending:
            function = pending.pop()
            if function is None or function in self.seen:
                continue
            self.seen.add(function)
            self.handles.append(function.register_prehook(self._marker(self._whose(function, owner))))
            pending += [following for following, _ in function.next_functions]

    def _close_with_engine(self, _: Any) -> None:
        """Mark when the last node is done: what follows is no node's."""
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(partial(self._marker(ENGINE), None))

    def _whose(self, function: Any, owner: str) -> str:
        if type(function).__name__ != "AccumulateGrad":
            return owner
        return self.accumulations.get(id(function.variable), ACCUMULATE)

    def _marker(self, owner: str) -> Any:
        events, mark = self.backward, self.clock.mark

        def before(_: Any) -> None:
            events.append((owner, mark()))

        return before

    def spans(self, span: Span) -> ContextTimes:
        """Add up by operator what lies between two marks."""
        forward = [(owner, span(start, end)) for owner, start, end in self.forward]
        marks = zip(self.backward, self.backward[1:], strict=False)
        backward = [(owner, span(start, end)) for (owner, start), (_, end) in marks]
        return ContextTimes(*_totals(forward), *_without_engine(*_totals(backward)))


def _totals(rows: Iterable[tuple[str, int]]) -> tuple[dict[str, int], dict[str, int]]:
    sums: dict[str, int] = {}
    counts: dict[str, int] = {}
    for owner, value in rows:
        sums[owner] = sums.get(owner, 0) + value
        counts[owner] = counts.get(owner, 0) + 1
    return sums, counts


def _without_engine(sums: dict[str, int], counts: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Give what autograd's engine takes before the first node and after the last to all nodes alike: it visits each."""
    engine_ns = sums.pop(ENGINE)
    counts.pop(ENGINE)
    num_marks = sum(counts.values())
    return {owner: value + engine_ns * counts[owner] // num_marks for owner, value in sums.items()}, counts


class _Chain(nn.Module):
    """Operators that compute next to nothing, so that only marks and calls take time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = x.neg()
        return x


def measure_mark_cost(clock: Clock, device: torch.device) -> MarkCost:
    """Measure what a mark takes of a CPU's time, or of the host's; of the time in kernels it takes none."""
    inputs = (torch.ones(2, requires_grad=True, device=device),)
    model = TrainingModel("marks", _Chain(), inputs, {}, None, False, torch.sum, {}, 2)
    captured = capture(model)
    walk, part = Walk(captured), extract(captured, captured.operators)
    marks = HostMarks(clock) if isinstance(clock, DeviceClock) else clock
    forward, backward = [], []
    for _ in range(20):
        whole = time_whole(part, model, marks)
        times = time_in_context(walk, model, marks)
        count = sum(times.forward_marks.values())
        forward.append((sum(times.forward_ns.values()) - whole.forward_ns) / count)
        count = sum(times.backward_marks.values())
        backward.append((sum(times.backward_ns.values()) - whole.backward_ns) / count)
    return MarkCost(sorted(forward)[len(forward) // 2], sorted(backward)[len(backward) // 2])
