"""A call whose weight gradient waits: autograd sees its activations only, and its weight half is queued.

That half is the very graph that autograd recorded for the call, run later: so any call is split by its own derivative
formulas, and gradients are the same numbers as undivided. Leaves out which calls are made so.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from costmodel.capture.split_formulas import ConvolutionHalf, LinearHalf


@dataclass(slots=True)
class Deferred:
    """The weight half of one call: where its gradient enters, that gradient, and whose ``.grad`` it fills."""

    edge: GradientEdge
    gradient: torch.Tensor
    weights: tuple[nn.Parameter, ...]

    def run(self) -> None:
        """Compute and accumulate."""
        torch.autograd.backward([self.edge], [self.gradient], inputs=self.weights)


WeightHalf = Deferred | LinearHalf | ConvolutionHalf


def run_in_turn(halves: deque[WeightHalf]) -> None:
    """Compute and accumulate weight halves, one by one; each is let go then, with the activations that it holds."""
    while halves:
        halves.popleft().run()


def is_hooked(parameter: torch.Tensor) -> bool:
    """Whether the user has hooks on a parameter's gradient: then autograd itself has to accumulate it."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


@dataclass(slots=True)
class Queue:
    """Weight halves of the backward that is running."""

    waiting: deque[WeightHalf] = field(default_factory=deque)

    def add(self, half: WeightHalf) -> None:
        """Leave one for later."""
        self.waiting.append(half)

    def drain(self) -> deque[WeightHalf]:
        """Return what is there and start anew."""
        found, self.waiting = self.waiting, deque()
        return found


class _Half(torch.autograd.Function):
    """A call whose backward gives the gradients of its activations and queues that of its weights."""

    @staticmethod
    def forward(ctx: Any, call: "Deferring", *tensors: torch.Tensor) -> Any:
        with torch.enable_grad():  # the call's own little graph, from detached inputs to its output
            local = [
                tensor if i in call.weight_positions else tensor.detach().requires_grad_(tensor.requires_grad)
                for i, tensor in enumerate(tensors)
            ]
            out = call.compute(local)
        first = out if isinstance(out, torch.Tensor) else out[0]
        ctx.call, ctx.edge = call, get_gradient_edge(first)
        ctx.inputs = [(i, tensor) for i, tensor in enumerate(local) if call.takes_gradient(i, tensor)]
        if isinstance(out, torch.Tensor):
            return out.data  # no view, so that what follows may work in place
        rest = [tensor.data for tensor in out[1:]]
        ctx.mark_non_differentiable(*rest)
        return (first.data, *rest)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        found: list[torch.Tensor | None] = [None] * ctx.call.num_tensors
        if ctx.inputs:
            leaves = [tensor for _, tensor in ctx.inputs]
            values = torch.autograd.grad([ctx.edge], leaves, [gradients[0]], retain_graph=True)
            for (i, _), value in zip(ctx.inputs, values, strict=True):
                found[i] = value
        ctx.call.queue.add(Deferred(ctx.edge, gradients[0], ctx.call.weights))
        ctx.inputs = ctx.edge = None
        return (None, *found)


@dataclass(frozen=True, slots=True)
class _Constant:
    """An argument that is the same in every call."""

    value: Any


@dataclass(frozen=True, slots=True)
class Deferring:
    """How a call is made so that the gradients of its weights wait, whatever the call is.

    Attributes
    ----------
    target : callable
    args, kwargs
        Position of each among the tensors, or a constant.
    num_tensors : int
    weight_positions : frozenset of int
    weights : tuple of torch.nn.Parameter
    queue : Queue
    """

    target: Any
    args: tuple[int | _Constant, ...]
    kwargs: Mapping[str, int | _Constant]
    num_tensors: int
    weight_positions: frozenset[int]
    weights: tuple[nn.Parameter, ...]
    queue: Queue

    @classmethod
    def of(
        cls,
        target: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        weights: Mapping[Any, nn.Parameter],
        queue: Queue,
    ) -> tuple["Deferring", list[Any]]:
        """Return it for a call, with what represents its tensors: nodes of a program, or the tensors themselves.

        `weights` are those among them that are a weight.
        """
        tensors = list(dict.fromkeys(a for a in (*args, *kwargs.values()) if isinstance(a, fx.Node | torch.Tensor)))
        place = {source: i for i, source in enumerate(tensors)}

        def position(value: Any) -> int | _Constant:
            return place[value] if isinstance(value, fx.Node | torch.Tensor) else _Constant(value)

        positions = frozenset(i for i, source in enumerate(tensors) if source in weights)
        own = tuple(dict.fromkeys(weights[source] for source in tensors if source in weights))
        named = {name: position(value) for name, value in kwargs.items()}
        return cls(target, tuple(map(position, args)), named, len(tensors), positions, own, queue), tensors

    def takes_gradient(self, position: int, tensor: torch.Tensor) -> bool:
        """Whether an argument is an activation with a gradient."""
        return position not in self.weight_positions and tensor.requires_grad

    def compute(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Make the call."""
        args = [a.value if isinstance(a, _Constant) else tensors[a] for a in self.args]
        if not self.kwargs:
            return self.target(*args)
        kwargs = {k: a.value if isinstance(a, _Constant) else tensors[a] for k, a in self.kwargs.items()}
        return self.target(*args, **kwargs)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Make the call so that its weight gradient waits."""
        return _Half.apply(self, *tensors)  # type: ignore[no-untyped-call]
