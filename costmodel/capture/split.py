"""Backward in two halves: I gives the input gradients at once, W the weight gradients when the plan says so.

Every call whose weight is a trainable parameter (linear, convolution, embedding, the matrix products) is
wrapped so that autograd sees its inputs only; its weight half is queued as the very graph that autograd
recorded for that call, and run later. So any such operator is split by its own derivative formulas, and
gradients are the same numbers as undivided. Linear layers and convolutions have their formulas written down
(`split_formulas`), which is quicker. Leaves out small parameters (norms, lone biases): theirs come with I.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from costmodel.capture.parts import Part
from costmodel.capture.shapes import fetch
from costmodel.capture.split_formulas import ConvolutionHalf, LinearHalf, formula_of

_aten = torch.ops.aten
SPLITTABLE = frozenset(
    overload
    for packet in (
        _aten.linear,
        _aten.conv1d,
        _aten.conv2d,
        _aten.conv3d,
        _aten.conv_transpose1d,
        _aten.conv_transpose2d,
        _aten.conv_transpose3d,
        _aten.convolution,
        _aten.addmm,
        _aten.mm,
        _aten.bmm,
        _aten.baddbmm,
        _aten.matmul,
        _aten.embedding,
        _aten.embedding_bag,
    )
    for overload in (getattr(packet, name) for name in packet.overloads())  # type: ignore[no-untyped-call]
)
"""Operators with a weight whose gradient can wait."""

_VIEWS = frozenset(
    {_aten.t.default, _aten.transpose.int, _aten.permute.default, _aten.view.default, _aten.reshape.default,
     _aten.unsqueeze.default, _aten.squeeze.dim, _aten.expand.default, _aten.numpy_T.default}
)  # fmt: skip
"""What may stand between a parameter and the call that uses it as its weight."""


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


@dataclass(slots=True)
class Queue:
    """Weight halves of the backward that is running."""

    waiting: list[WeightHalf] = field(default_factory=list)

    def add(self, half: WeightHalf) -> None:
        """Leave one for later."""
        self.waiting.append(half)

    def drain(self) -> list[WeightHalf]:
        """Return what is there and start anew."""
        found, self.waiting = self.waiting, []
        return found


class _Half(torch.autograd.Function):
    """A call whose backward gives the gradients of its activations and queues that of its weights."""

    @staticmethod
    def forward(ctx: Any, call: "_Call", *tensors: torch.Tensor) -> Any:
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


class _Call(nn.Module):
    """One splittable call of a part, with which of its tensor arguments are weights."""

    def __init__(self, node: fx.Node, weights: Mapping[fx.Node, nn.Parameter], queue: Queue) -> None:
        super().__init__()
        self.target: Any = node.target
        tensors = node.all_input_nodes
        self.num_tensors = len(tensors)
        self.weight_positions = frozenset(i for i, source in enumerate(tensors) if source in weights)
        # In a tuple they are hidden from nn.Module, which would list them a second time.
        self.weights = tuple(dict.fromkeys(weights[source] for source in tensors if source in weights))
        self.queue = queue
        place = {source: i for i, source in enumerate(tensors)}
        self._args = [place[a] if isinstance(a, fx.Node) else _Constant(a) for a in node.args]
        self._kwargs = {k: place[a] if isinstance(a, fx.Node) else _Constant(a) for k, a in node.kwargs.items()}
        self._formula = formula_of(node, weights)

    def takes_gradient(self, position: int, tensor: torch.Tensor) -> bool:
        """Whether an argument is an activation with a gradient."""
        return position not in self.weight_positions and tensor.requires_grad

    def compute(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Make the call."""
        args = [a.value if isinstance(a, _Constant) else tensors[a] for a in self._args]
        if not self._kwargs:
            return self.target(*args)
        kwargs = {k: a.value if isinstance(a, _Constant) else tensors[a] for k, a in self._kwargs.items()}
        return self.target(*args, **kwargs)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Make the call so that its weight gradient waits; without gradients just make it."""
        if not torch.is_grad_enabled():
            return self.compute(tensors)
        if self._formula is not None and self._formula.takes(tensors[0]):
            return self._formula.apply(self.queue.add, *tensors)
        return _Half.apply(self, *tensors)  # type: ignore[no-untyped-call]

    __call__ = forward  # nothing hooks into these calls, and nn.Module's look for hooks takes microseconds in each


def split_part(part: Part, queue: Queue) -> Part:
    """Return a part that computes the same and leaves its weight gradients in `queue`."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    output = graph.graph_copy(part.module.graph, copies)
    graph.output(output)
    module = fx.GraphModule(part.module, graph)
    weights = _weights(module)
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in SPLITTABLE or not _plain(node):
            continue
        if any(source in weights for source in node.all_input_nodes):
            name = f"deferred_{node.name}"
            module.add_submodule(name, _Call(node, weights, queue))
            with graph.inserting_before(node):
                call = graph.call_module(name, tuple(node.all_input_nodes))
            call.meta = node.meta
            node.replace_all_uses_with(call)
            graph.erase_node(node)
    module.recompile()
    return replace(part, module=module)


def _weights(module: fx.GraphModule) -> dict[fx.Node, nn.Parameter]:
    """Return the nodes that are a trainable parameter or a view of one."""
    found: dict[fx.Node, nn.Parameter] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = fetch(module, node.target)
            if isinstance(value, nn.Parameter) and value.requires_grad:
                found[node] = value
        elif node.target in _VIEWS and node.args[0] in found:
            found[node] = found[node.args[0]]
    return found


def _plain(node: fx.Node) -> bool:
    """Whether every computed argument is a tensor and stands by itself, neither a number nor within a list."""
    direct = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, fx.Node)]
    computed = [source for source in direct if source.op not in ("get_attr", "placeholder")]
    return set(direct) == set(node.all_input_nodes) and all(
        isinstance(source.meta.get("val"), torch.Tensor) for source in computed
    )
